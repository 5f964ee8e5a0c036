"""What the chart tells the programs, shown to the programs themselves: `config check` of each has to take it.

They are looked for in FLEXFEED_BIN_DIR, then in the target folder; without them this says so and is skipped, and fails where
FLEXFEED_REQUIRE_PEERS is set.
"""

import os
import pathlib
import subprocess
import tempfile
import unittest

from chart import ROOT, SCENARIOS, pods, rendered, variables

LINK = "flexfeed://TOKEN@feeds.example.org:4433?pin=sha256:" + "A" * 43 + "&ch=lore"


def program(name):
    """Where a program is, or nothing."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for folder in (os.environ.get("FLEXFEED_BIN_DIR"), target / "release", target / "debug"):
        path = pathlib.Path(folder or "/nonexistent") / f"flexfeed-{name}"
        if path.exists():
            return path
    return None


def secrets(objects):
    """The texts of all Secrets: {name of the Secret: {key: text}}."""
    return {one["metadata"]["name"]: one.get("stringData", {}) for one in objects if one["kind"] == "Secret"}


class Programs(unittest.TestCase):
    """All scenarios."""

    @unittest.skipUnless(program("source") or os.environ.get("FLEXFEED_REQUIRE_PEERS"), "the programs are not built")
    def test_the_programs_take_what_the_chart_tells_them(self):
        checked = set()
        for path in SCENARIOS:
            objects = rendered("-f", path)
            for _, _, spec in pods(objects):
                for one in spec["containers"]:
                    if one["name"] == "postgres" or "command" in one:
                        continue
                    with self.subTest(f"{path.name}: {one['name']}"):
                        self.check(one, secrets(objects))
                        checked.add(one["name"])
        self.assertEqual(checked, {"source", "relay", "console", "receiver"})

    def check(self, one, known):
        """Has a container's program check its settings."""
        with tempfile.TemporaryDirectory() as folder:
            etc = pathlib.Path(folder) / "etc"
            for place, text in (("database/url", "postgresql://u:p@h/d"), ("link/link", LINK), ("files/webhook-secret", "s" * 32)):
                (etc / place).parent.mkdir(parents=True)
                (etc / place).write_text(text)
            (etc / "config").mkdir()
            for name, texts in known.items():
                if name.endswith("-config"):
                    for key, text in texts.items():
                        (etc / "config" / key).write_text(text)
            pod = next(iter(sorted(one.name[: -len(".toml")] for one in (etc / "config").iterdir())), "pod")
            environment = {"PATH": os.environ["PATH"]}
            for name, value in variables(one).items():
                value = value.replace("/etc/flexfeed", str(etc)).replace("$(POD_NAME)", pod)
                environment[name] = value.replace("$(HOST_IP)", "192.0.2.9").replace("$(WHERE)", "node")
            done = subprocess.run(
                [program(one["name"]), "config", "check"], env=environment, cwd=folder, capture_output=True, text=True, check=False
            )
            said = done.stdout + done.stderr
            self.assertEqual(done.returncode, 0, said)
            self.assertNotRegex(said, r"(?i)no such setting|is .* meant|did you mean", said)


if __name__ == "__main__":
    unittest.main()
