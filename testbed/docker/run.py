"""Runs the tests of this folder, all or those that are named: python3 -m run [test_ladder[.Killed[.test_nothing_is_lost]]] …

They work against the clock, with an engine that is not ours: up to UNSTABLE_MOST that fail are tried once more (not with
FLEXFEED_STRICT=1). What fails twice has failed; what failed once is listed.
"""

import os
import re
import sys
import time
import unittest

import engine


UNSTABLE_MOST = 2


class Result(unittest.TextTestResult):
    """Says how long each took."""

    def startTest(self, test):
        self.begun = time.monotonic()
        super().startTest(test)

    def addSuccess(self, test):
        self.stream.write(f"({time.monotonic() - self.begun:.0f} s) ")
        super().addSuccess(test)


def name(test):
    """Returns the name of a failed test, of the class or module whose preparation failed, or of the test of a failed part."""
    # The name of a failed subTest includes its parameters and cannot be loaded.
    test = getattr(test, "test_case", test)
    prepared = re.fullmatch(r"(?:setUp|tearDown)(?:Class|Module) \((.*)\)", test.id())
    return prepared.group(1) if prepared else test.id()


def run(suite):
    return unittest.TextTestRunner(verbosity=2, failfast=False, resultclass=Result).run(suite)


def again(done, loader):
    """Whether all that failed pass at a second try."""
    names = sorted({name(test) for test, _ in done.failures + done.errors})
    if os.environ.get("FLEXFEED_STRICT") or not 1 <= len(names) <= UNSTABLE_MOST:
        return False
    print(f"\nTrying once more what failed: {' '.join(names)}\n", file=sys.stderr, flush=True)
    second = run(loader.loadTestsFromNames(names))
    if not second.wasSuccessful() or second.testsRun < len(names) or second.skipped:
        return False
    print("\n!!! UNSTABLE: these failed at first and passed at the second try. That is a defect:", file=sys.stderr)
    for each in names:
        print(f"!!!   {each}", file=sys.stderr)
    if "FLEXFEED_UNSTABLE" in os.environ:
        with open(os.environ["FLEXFEED_UNSTABLE"], "a", encoding="utf-8") as listed:
            listed.writelines(f"{each}\n" for each in names)
    return True


def main():
    """The exit code."""
    loader = unittest.TestLoader()
    if sys.argv[1:]:
        suite = loader.loadTestsFromNames(sys.argv[1:])
    else:
        suite = loader.discover(".", "test_*.py")
    try:
        done = run(suite)
        good = done.testsRun and (done.wasSuccessful() or again(done, loader))
    finally:
        engine.clean()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
