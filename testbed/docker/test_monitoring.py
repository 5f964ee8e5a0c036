"""The profile `monitoring` of docker-compose.yml: Prometheus reaches all its targets, and has the alerts."""

import json
import os
import unittest

from engine import RUN, docker, wait
from stage import fetch, free_port
from test_compose import KINDS, Project, base

PROMETHEUS = f"{RUN}-prometheus"


def prometheus_image():
    """The image of PROMETHEUS_IMAGE, or a stand-in that is made here on the base of our images."""
    named = os.environ.get("PROMETHEUS_IMAGE")
    if named:
        return named
    here = os.path.join(os.path.dirname(__file__), "prometheus")
    docker("build", "-q", "-t", PROMETHEUS, "--build-arg", f"BASE_IMAGE={base()}", here, timeout=600)
    return PROMETHEUS


@unittest.skipUnless(KINDS, "there is no Compose here")
class Monitoring(unittest.TestCase):
    """Prometheus beside the rest. Grafana is not started: there is no package of it to make an image from."""

    def test_everything_is_asked(self):
        """All targets answer in a form that it takes, and the alerts are loaded."""
        port = free_port()
        settings = {"PROMETHEUS_IMAGE": prometheus_image(), "PROMETHEUS_PORT": str(port)}
        with Project(next(iter(KINDS.values())), settings=settings) as project:
            project.compose("--profile", "monitoring", "up", "-d", "prometheus")
            self.look(port)
        docker("image", "rm", PROMETHEUS, check=False)

    def look(self, port):
        """Returns its API's answer."""

        def ask(path):
            return json.loads(fetch(f"http://127.0.0.1:{port}/api/v1/{path}"))["data"]

        def health():
            targets = ask("targets")["activeTargets"]
            return {one["labels"]["instance"]: one["lastError"] or one["health"] for one in targets}

        wanted = {"source:8090", "relay:8091", "receiver-a:8080", "receiver-b:8080", "console:9470"}
        try:
            wait("all targets answer", lambda: (now := health()) and set(now.values()) == {"up"}, 300)
        except AssertionError as error:
            raise AssertionError(f"{error}: {health()}") from None
        self.assertEqual(set(health()), wanted)
        rules = [rule for group in wait("the rules", lambda: ask("rules")["groups"]) for rule in group["rules"]]
        self.assertGreater(len({rule["name"] for rule in rules}), 25)
        self.assertFalse([rule for rule in rules if rule.get("health") == "err"])
        # A target is up a moment before what it said can be asked for.
        wait(
            "the number of receivers in the source's metrics, by the name of docs/metrics.md",
            lambda: ask("query?query=sum(flexfeed_source_connected_receivers)")["result"],
        )


if __name__ == "__main__":
    unittest.main()
