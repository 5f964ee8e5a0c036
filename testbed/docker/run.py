"""Runs the tests of this folder, all or those that are named: python3 -m run [test_ladder[.Killed[.test_nothing_is_lost]]] …"""

import sys
import time
import unittest

import engine


class Result(unittest.TextTestResult):
    """Says how long each took."""

    def startTest(self, test):
        self.begun = time.monotonic()
        super().startTest(test)

    def addSuccess(self, test):
        self.stream.write(f"({time.monotonic() - self.begun:.0f} s) ")
        super().addSuccess(test)


def main():
    """The exit code."""
    loader = unittest.TestLoader()
    if sys.argv[1:]:
        suite = loader.loadTestsFromNames(sys.argv[1:])
    else:
        suite = loader.discover(".", "test_*.py")
    try:
        done = unittest.TextTestRunner(verbosity=2, failfast=False, resultclass=Result).run(suite)
    finally:
        engine.clean()
    return 0 if done.wasSuccessful() and done.testsRun else 1


if __name__ == "__main__":
    sys.exit(main())
