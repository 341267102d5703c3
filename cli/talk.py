"""What is said beside the data: log lines of graphkiln, and the warnings of others."""

from __future__ import annotations

import logging
import sys
import warnings

from graphkiln.cache.factors.env import read, unknown_variables
from graphkiln.cli.session import Session


def start_talk(session: Session) -> None:
    """Sends graphkiln's log to stderr, at the level asked for, and names variables that nobody reads."""
    levels = {0: str(read("GRAPHKILN_LOG_LEVEL")), 1: "INFO"}
    logger = logging.getLogger("graphkiln")
    logger.setLevel("ERROR" if session.quiet else levels.get(session.verbosity, "DEBUG"))
    logger.handlers = [logging.StreamHandler(sys.stderr)]
    logger.handlers[0].setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.propagate = False
    if not session.verbosity:
        # What torch and transformers warn about is of use to who looks for a cause, and noise else.
        warnings.simplefilter("ignore")
    for name, nearest in unknown_variables():
        meant = f"; did you mean {nearest}" if nearest else ""
        session.talk(f"warning: {name} is set, and no such variable is read{meant}")
