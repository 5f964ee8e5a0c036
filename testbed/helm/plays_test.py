"""The installations of ./dev test-kube, with all that it breaks on purpose: the chart takes their values. They need no cluster."""

import argparse
import json
import pathlib
import tempfile
import unittest

from chart import find, rendered
from cluster import KINDS, SABOTAGE
from nodes import LABEL, Nodes
from single import Single
from small import Small
from standby import Standby

OPTIONS = argparse.Namespace(
    node_address="127.0.0.1", feed_address="127.0.0.1", registry="", prefix="flexfeed", tag="latest", pull="Never",
    postgres="postgres:15", postgres_user=999, balancers=["192.0.2.101", "192.0.2.102"],
)  # fmt: skip


class Plays(unittest.TestCase):
    """All of them: what is broken has to show on the cluster, not as a value that is refused."""

    def test_their_values_are_taken(self):
        plays = [(Single, {}, ""), (Small, {}, ""), (Nodes, {}, ""), (Standby, {}, "")]
        plays += [(KINDS.get(name, Single), over, trick) for name, (_, over, trick) in SABOTAGE.items()]
        for kind, over, trick in plays:
            with self.subTest(f"{kind.__name__} {over} {trick}"), tempfile.TemporaryDirectory() as folder:
                play = kind(OPTIONS, "values", over, trick)
                path = pathlib.Path(folder) / "values.json"
                try:
                    path.write_text(json.dumps(play.values()))
                finally:
                    play.feed.close()
                objects = rendered("-f", path)
                if kind is Nodes:
                    spec = find(objects, "DaemonSet", "flexfeed-relay")["spec"]["template"]["spec"]
                    self.assertEqual(spec["nodeSelector"], {LABEL: "true"})
                else:
                    find(objects, "StatefulSet", "flexfeed-source")

    def test_what_is_broken_belongs_to_a_stage(self):
        for name, (stage, _, _) in SABOTAGE.items():
            kind = KINDS.get(name, Single)
            self.assertIn(stage, [one.__name__ for one in kind.STAGES], name)


if __name__ == "__main__":
    unittest.main()
