"""Environments in every form that people have them, and what vLLM would find for one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.errors import EnvironmentUnreadable
from graphkiln.cache.layouts.environments import Environment, of_file, of_process
from graphkiln.cache.layouts.vllm.explain import EnvironmentExplanation, explain_environment
from graphkiln.cache.layouts.vllm.reader import VllmReader
from tests.layouts.trees import Vllm

POD = """
apiVersion: v1
kind: Pod
spec:
  initContainers:
    - name: fetch
  containers:
    - name: server
      image: registry.example/vllm-openai:v2
      envFrom: [{configMapRef: {name: more}}]
      env:
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - {name: BASE, value: "5"}
        - {name: VLLM_NIXL_SIDE_CHANNEL_PORT, value: "$(BASE)600"}
        - {name: VLLM_SECRET, valueFrom: {secretKeyRef: {name: s, key: k}}}
    - name: sidecar
      image: proxy
"""
WANTED = {"BASE": "5", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600"}


def written(folder: Path, text: str | bytes) -> str:
    path = folder / "environment"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_a_pod_spec_is_read(tmp_path: Path) -> None:
    found = of_file(written(tmp_path, POD))
    assert (dict(found.values), set(found.unknown)) == (WANTED, {"POD_IP", "VLLM_SECRET"})
    assert not found.complete
    assert found.what.startswith("container server of ")
    assert "envFrom" in found.what
    # As a Deployment in a list, and as JSON, it says the same.
    import yaml

    wrapped = {"kind": "List", "items": [{"kind": "Deployment", "spec": {"template": yaml.safe_load(POD)}}]}
    for text in (json.dumps(wrapped), yaml.safe_dump(wrapped), f"---\nkind: ConfigMap\n---\n{POD}"):
        assert dict(of_file(written(tmp_path, text)).values) == WANTED


def test_a_container_is_chosen_by_name_where_several_could_be_meant(tmp_path: Path) -> None:
    two = POD.replace("image: proxy", "image: vllm-router\n      env: [{name: A, value: b}]")
    with pytest.raises(
        EnvironmentUnreadable, match="the containers server, sidecar: name one with --container"
    ):
        of_file(written(tmp_path, two))
    assert of_file(written(tmp_path, two), "sidecar").values == {"A": "b"}
    with pytest.raises(EnvironmentUnreadable, match="no container other"):
        of_file(written(tmp_path, two), "other")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A=1\nB=two words\nC=\n", {"A": "1", "B": "two words", "C": ""}),
        ("# a comment\nexport A='1'\nB=\"2\"\n", {"A": "1", "B": "2"}),
        ("A=first\nsecond line\nB=2\n", {"A": "first\nsecond line", "B": "2"}),
        (b"A=1\0B=x\ny\0", {"A": "1", "B": "x\ny"}),
        (b"A=1\0BASH_FUNC_f%%=() {  :\n}\0", {"A": "1"}),
        # Quotes that a process was given are part of the value.
        (b"A=\"1\"\0B='x'\0", {"A": '"1"', "B": "'x'"}),
        ('{"A": "1", "B": 2, "C": true}', {"A": "1", "B": "2", "C": "true"}),
        ('[{"name": "A", "value": "1"}]', {"A": "1"}),
        ("- name: A\n  value: '1'\n", {"A": "1"}),
    ],
)
def test_other_forms_are_read(text: str | bytes, values: Mapping[str, str], tmp_path: Path) -> None:
    assert dict(of_file(written(tmp_path, text)).values) == values


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("what is this", "neither NAME=VALUE lines nor a pod spec"),
        ("kind: Pod\nspec: {", "no YAML: "),
        ("kind: Pod\nspec: {}", "no container and no env list"),
        ('[{"value": "1"}]', "has no name"),
        ("kind: !!python/object/apply:os.getcwd []", "no YAML: could not determine a constructor"),
        ("[" * 100_000, "nested too deeply"),
        ("", "it sets no variable"),
        ("\n \n", "it sets no variable"),
        (b"\0" * 100, "it sets no variable"),
        (b"\x7fELF\2\0\0A=1\0\xff\xfe\0", "NULs, and between them what is no NAME=VALUE"),
        (b"A=1\n" + b"#" * (16 << 20), "larger than 16 MiB"),
    ],
)
def test_what_is_no_environment_is_refused(text: str | bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnreadable, match=reason):
        of_file(written(tmp_path, text))


def test_a_device_without_an_end_is_refused() -> None:
    with pytest.raises(EnvironmentUnreadable, match="larger than 16 MiB"):
        of_file("/dev/zero")


def test_a_process_without_variables_is_refused() -> None:
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={})
    try:
        with pytest.raises(EnvironmentUnreadable, match="it sets no variable"):
            of_process(child.pid)
    finally:
        child.communicate()


def test_aliases_that_multiply_are_walked_once(tmp_path: Path) -> None:
    lines = ["kind: Pod", "a0: &a0 {containers: [{name: one, env: [{name: A, value: b}]}]}"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, 20)]
    assert of_file(written(tmp_path, "\n".join(lines))).values == {"A": "b"}


def test_a_running_process_is_read(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "input('ready')"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "VLLM_X": "a b", "VLLM_Y": '"c"'},
    )
    assert child.stdout is not None
    try:
        # A process that is being started has no variables for a moment.
        assert child.stdout.read(5) == b"ready"
        found = of_process(child.pid)
        assert (found.values["VLLM_X"], found.complete) == ("a b", True)
        assert found.values["VLLM_Y"] == '"c"'
        assert found.root == f"/proc/{child.pid}/root"
    finally:
        child.communicate(b"\n")
    with pytest.raises(EnvironmentUnreadable, match="there is no such process"):
        of_process(2**22 + 1)


READER = VllmReader()


def explained(root: Path, values: Mapping[str, str], **more: Any) -> EnvironmentExplanation:
    return explain_environment(READER.scan(root), Environment("here", dict(values), **more), 3)


def test_an_environment_that_gives_the_same_factor_is_a_hit(tmp_path: Path) -> None:
    tree = Vllm(tmp_path, env={"VLLM_CPU_OMP_THREADS_BIND": "auto", "VLLM_LIST": ["a", "b"]}).write()
    for values in (
        {},
        {"VLLM_XGRAMMAR_CACHE_MB": "512"},
        {"VLLM_USE_AOT_COMPILE": "1", "VLLM_USE_MEGA_AOT_ARTIFACT": "true"},
        {"VLLM_CPU_OMP_THREADS_BIND": "auto", "VLLM_LIST": "a, b", "VLLM_DISABLE_COMPILE_CACHE": "0"},
        # What vLLM leaves out of its hash may differ.
        {"VLLM_PORT": "9", "VLLM_HOST_IP": "10.0.0.3", "PATH": "/bin"},
    ):
        found = explained(tmp_path, values)
        assert (found.outcome, found.key) == ("hit", READER.scan(tmp_path).rows[0].key), values
        assert found.assumed[0].startswith("model, configuration, sources and compiler are those of")
    assert tree.short in str(explained(tmp_path, {}).entry)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"VLLM_XGRAMMAR_CACHE_MB": "256"}, ["VLLM_XGRAMMAR_CACHE_MB"]),
        (
            {"VLLM_NIXL_SIDE_CHANNEL_PORT": "1", "VLLM_XGRAMMAR_CACHE_MB": "512"},
            ["VLLM_NIXL_SIDE_CHANNEL_PORT"],
        ),
        ({"VLLM_USE_MEGA_AOT_ARTIFACT": "0"}, ["VLLM_USE_MEGA_AOT_ARTIFACT"]),
        # Without ahead-of-time compilation there is no such artifact either.
        ({"VLLM_USE_AOT_COMPILE": "0"}, ["VLLM_USE_AOT_COMPILE", "VLLM_USE_MEGA_AOT_ARTIFACT"]),
    ],
)
def test_a_variable_that_would_make_it_miss_is_named(
    values: Mapping[str, str], names: list[str], tmp_path: Path
) -> None:
    tree = Vllm(tmp_path).write()
    found = explained(tmp_path, values)
    assert found.outcome == "miss"
    [near] = found.nearest
    assert near.id == tree.short
    assert [cause.difference.name for cause in near.causes] == names
    assert all(cause.difference.remedy for cause in near.causes)


def test_a_variable_that_is_not_set_is_judged_by_what_most_entries_have(tmp_path: Path) -> None:
    for number in range(2):
        Vllm(tmp_path, config=f"{number:010}").write()
    odd = Vllm(tmp_path, env={"VLLM_XGRAMMAR_CACHE_MB": 64}, config="9876543210").write()
    assert explained(tmp_path, {"VLLM_XGRAMMAR_CACHE_MB": "64"}).entry == str(odd.pieces)
    assert odd.short not in str(explained(tmp_path, {}).entry)
    assert any("2 entries have this environment" in text for text in explained(tmp_path, {}).assumed)


def test_what_cannot_be_told_is_unknown(tmp_path: Path) -> None:
    Vllm(tmp_path, env={"VLLM_LIST": ["a", "b"]}).write()
    found = explained(tmp_path, {}, unknown=frozenset({"VLLM_NIXL_SIDE_CHANNEL_PORT"}), complete=False)
    assert found.outcome == "unknown"
    assert any("VLLM_NIXL_SIDE_CHANNEL_PORT agree, which cannot be told" in text for text in found.assumed)
    assert "the image sets no variable beside these" in found.assumed
    assert explained(tmp_path, {"VLLM_LIST": "a;b"}).outcome == "unknown"
    assert explained(tmp_path, {}, unknown=frozenset({"POD_IP"})).outcome == "hit"


def test_what_is_not_loadable_is_no_hit(tmp_path: Path) -> None:
    tree = Vllm(tmp_path).write()
    tree.model.write_bytes(b"")
    found = explained(tmp_path, {})
    assert (found.outcome, found.nearest) == ("miss", ())
    assert found.assumed[0].startswith(f"{tree.short} has this environment and is broken")
    (tree.part / "cache_key_factors.json").write_text("{")
    assert explained(tmp_path, {}).outcome == "unknown"


def test_a_disabled_cache_is_a_miss_by_itself(tmp_path: Path) -> None:
    Vllm(tmp_path).write()
    found = explained(tmp_path, {"VLLM_DISABLE_COMPILE_CACHE": "1"})
    assert (found.outcome, found.nearest) == ("miss", ())
    assert found.reasons[0].remedy == "unset VLLM_DISABLE_COMPILE_CACHE"


def test_real_entries_answer(unpacked: Callable[[str], Path]) -> None:
    root = unpacked("multi")
    assert explained(root, {}).outcome == "hit"
    found = explained(root, {"VLLM_XGRAMMAR_CACHE_MB": "256"})
    assert (found.outcome, Path(str(found.entry)).name) == ("hit", "4a8c89dcd1")
    found = explained(root, {"VLLM_USE_AOT_COMPILE": "0"})
    assert (found.outcome, Path(str(found.entry)).name) == ("hit", "e224206a4f")
    found = explained(root, {"VLLM_XGRAMMAR_CACHE_MB": "300"})
    assert found.outcome == "miss"
    assert [cause.difference.name for cause in found.nearest[0].causes] == ["VLLM_XGRAMMAR_CACHE_MB"]
