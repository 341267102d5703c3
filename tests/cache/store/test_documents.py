"""Documents are checked before they are parsed, and JSON is read strictly."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from graphkiln.cache.errors import NotCanonical
from graphkiln.cache.store.documents import DocumentFault, parse_object, seal, unseal

BODY: dict[str, Any] = {"b": [1, 1.0, None, {"x": "ü\n"}], "a": {}}


def test_a_document_is_plain_json_and_gives_its_body_back() -> None:
    data = seal(BODY, "header")
    assert json.loads(data)["body"] == BODY
    assert unseal(data) == BODY
    assert seal(dict(reversed(BODY.items())), "header") == data


def test_any_changed_byte_is_found() -> None:
    data = seal(BODY, "header")
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(DocumentFault):
            unseal(bytes(damaged))


def test_any_cut_is_found() -> None:
    data = seal(BODY, "header")
    for length in range(len(data)):
        with pytest.raises(DocumentFault):
            unseal(data[:length])
    with pytest.raises(DocumentFault):
        unseal(data + b"\n")


def test_a_wrong_digest_is_said_before_a_parse_could_fail() -> None:
    damaged = seal(BODY, "header").replace(b'"a"', b'"a')
    with pytest.raises(DocumentFault) as caught:
        unseal(damaged)
    assert caught.value.fault == "digest"


def test_a_body_without_canonical_form_is_named() -> None:
    with pytest.raises(NotCanonical) as caught:
        seal({"model": {1}}, "header")
    assert caught.value.where == "header.model"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"a": 1} x',
        b'{"a": 1, "a": 1}',
        b'{"x": {"a": 1, "a": 2}}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": "\xff"}',
        b"\xff\xfe{}",
        b"\0" * 64,
    ],
)
def test_whatever_is_no_plain_object_is_one_kind_of_fault(text: bytes) -> None:
    with pytest.raises(DocumentFault):
        parse_object(text)
    sealed = b'{"sha256": "%s",\n"body": %s}\n' % (hashlib.sha256(text).hexdigest().encode(), text)
    with pytest.raises(DocumentFault):
        unseal(sealed)
