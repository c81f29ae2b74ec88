"""Words of the framework in processes whose script configures logging in its own way."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

PROGRAM = """
    import logging, logging.config, sys
    from rlinf_async._core.own_logger import own_logger

    logger, theirs = own_logger("rlinf_async.waits"), logging.getLogger("theirs")
    root = logging.getLogger()
    {script}
    logger.warning("still %s", "waiting")
    theirs.warning("chatter")
"""

SILENCED = {
    "dictConfig": "logging.config.dictConfig({'version': 1})",
    "dictConfig twice": "logging.config.dictConfig({'version': 1}); logging.config.dictConfig({'version': 1})",
    "disabled by name": "logger.disabled = theirs.disabled = True",
    "disable": "logging.disable()",
    "level of the root": "root.setLevel('CRITICAL')",
    "handler of the root that takes nothing": "root.addHandler(logging.NullHandler())",
    "handler of the root for errors": "root.addHandler(logging.StreamHandler()); root.handlers[0].setLevel('ERROR')",
    "no handler of last resort": "logging.lastResort = None",
    "no handler any more": "logging.basicConfig(); root.handlers.clear(); logging.lastResort = None",
    "no propagation": "logging.getLogger('rlinf_async').propagate = False; logging.lastResort = None",
}
HELD_BACK = {
    "level of the framework's": "logging.getLogger('rlinf_async').setLevel('CRITICAL')",
    "level of the logger": "logger.setLevel('ERROR')",
    "handler of the framework's": "logging.getLogger('rlinf_async').addHandler(logging.NullHandler()); "
    "logging.getLogger('rlinf_async').propagate = False",
    "filter of the logger": "logger.addFilter(lambda record: False)",
}


def said(script: str) -> str:
    program = dedent(PROGRAM).format(script=script)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stderr


@pytest.mark.parametrize("script", SILENCED.values(), ids=SILENCED)
def test_a_script_that_silences_all_others_hears_the_framework(script: str) -> None:
    assert said(script).splitlines()[:1] == ["still waiting"]
    assert "chatter" not in said(script)


@pytest.mark.parametrize("script", HELD_BACK.values(), ids=HELD_BACK)
def test_a_script_that_names_the_framework_has_its_way(script: str) -> None:
    assert said(script) == "chatter\n"


def test_a_word_comes_once_and_by_the_handlers_that_there_are() -> None:
    script = "logging.basicConfig(format='[%(name)s] %(message)s', level='ERROR'); logging.disable(); "
    script += "root.handlers[0].setLevel('WARNING')"
    assert said(script) == "[rlinf_async.waits] still waiting\n"


def test_chatter_of_the_framework_follows_the_root() -> None:
    assert said("logger.info('one')") == "still waiting\nchatter\n"
    assert said("logging.basicConfig(format='%(message)s', level='INFO'); logger.info('one')").startswith("one\nstill")
    assert "one" not in said("logging.basicConfig(level='INFO'); logging.disable('INFO'); logger.info('one')")
