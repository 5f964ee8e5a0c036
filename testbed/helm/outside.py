"""A receiver outside of the cluster: an ordinary process of this machine, and what it was delivered."""

import collections
import json
import os
import pathlib
import signal
import subprocess
import tempfile

from kube import Failed, wait


class Receiver:
    """Runs until `stop`. Its data folder is kept by who makes it."""

    def __init__(self, program, link, wrapper=()):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="flexfeed-outside-"))
        self._command = [*wrapper, str(program), link, "--data", str(self.folder), "--http", "off", "--name", "outside",
                         "--delivery-log", str(self.folder / "deliveries")]
        self._process = None
        self.start()

    def start(self):
        """Starts it."""
        log = open(self.folder / "log", "ab")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FLEXFEED_")}
        self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)

    def stop(self):
        """Ends it."""
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)

    def status(self):
        """Returns the status of its first channel."""
        if self._process.poll() is not None:
            log = (self.folder / "log").read_text().splitlines()[-3:]
            raise Failed(f"the receiver ended with {self._process.returncode}: {log}")
        status = json.loads((self.folder / "status.json").read_text())
        return status, status["channels"][0]

    def wait_rung(self, rung, seconds=90):
        """Waits until it stands on that rung; the channel's status."""

        def look():
            status, channel = self.status()
            if not status["connected"] or channel["rung"] != rung:
                raise Failed(f"connected: {status['connected']}, {channel['rung']}, {channel.get('relay_detail')}, {status.get('error')}")
            return channel

        return wait(f"the receiver outside on {rung}", look, seconds)

    def delivered(self):
        """Returns the number of deliveries of each entry."""
        try:
            lines = (self.folder / "deliveries").read_text().split("\n")
        except FileNotFoundError:
            return collections.Counter()
        return collections.Counter(json.loads(line)["id"] for line in lines[:-1])

    def wait_all(self, ids, seconds=90):
        """Waits until it has all of these, and checks that none came twice."""

        def look():
            missing = set(ids) - set(self.delivered())
            if missing:
                raise Failed(f"{len(missing)} of {len(ids)} entries are missing, such as {sorted(missing)[:3]}")
            return True

        wait("every entry at the receiver outside", look, seconds)
        twice = [one for one, times in self.delivered().items() if times > 1]
        if twice:
            raise Failed(f"{len(twice)} entries were delivered more than once, such as {twice[:3]}")
        _, channel = self.status()
        if channel["missing"] or channel["mismatches"] or channel["undecodable"]:
            raise Failed(f"the receiver counts missing or broken updates: {channel}")
