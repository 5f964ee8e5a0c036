"""Compatibility of the chart's settings with the programs: `config check` of each accepts them.

They are looked for in FLEXFEED_BIN_DIR, then in the target folder; without them this says so and is skipped, and fails where
FLEXFEED_REQUIRE_PEERS is set.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import yaml
from chart import CHART, ROOT, SCENARIOS, answered, given, pods, refused, rendered, scenario, variables

FILE_OF_OTHERS = """
public_address = "elsewhere.example.org"
multicast_ttl = 9
retention = 7

[[channel]]
name = "own"

[[channel.feed]]
url = "https://example.org/own.atom"
"""
LINK = "flexfeed://TOKEN@feeds.example.org:4433?pin=sha256:" + "A" * 43 + "&ch=lore"


def program(name):
    """Returns the path of a program, or None."""
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

    @unittest.skipUnless(program("source") or os.environ.get("FLEXFEED_REQUIRE_PEERS"), "the programs are not built")
    def test_the_schema_has_the_settings_that_the_programs_have(self):
        schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
        own = yaml.safe_load(answered('{{ include "flexfeed.ownSettings" . }}'))
        environment = {"PATH": os.environ["PATH"], "DATABASE_URL": "postgresql://u:p@h/d", "FLEXFEED_LINK": LINK}
        for name, command, key in (
            ("source", "show", "key"), ("relay", "check", "setting"), ("console", "check", "setting"), ("receiver", "check", "setting"),
        ):  # fmt: skip
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                done = subprocess.run(
                    [program(name), "config", command, "--json"], env=environment, cwd=folder, capture_output=True, text=True, check=True
                )
                # A file cannot name another one.
                settings = {one[key] for one in json.loads(done.stdout)["settings"]} - {"config"}
                self.assertEqual(set(schema[name]["properties"]["settings"]["properties"]), settings)
                self.assertLessEqual(set(own[name]), settings)
                # Each that the chart sets itself is refused, with what to set in its place.
                complaint = refused(*given(*(f"{name}.settings.{one}=1" for one in own[name])))
                for one in own[name]:
                    self.assertIn(f"{name}.settings.{one}: the chart sets this itself: ", complaint)
                # All others are taken; and what the chart sets as variables is among those that are not.
                values = ["receiver.enabled=true", "receiver.existingSecret=l", *(f"{name}.settings.{one}=1" for one in settings - set(own[name]))]
                prefix = {"source": "FLEXFEED_", "receiver": "FLEXFEED_"}.get(name, f"FLEXFEED_{name.upper()}_")
                for _, _, spec in pods(rendered(*given("publicAddress=a.example", *values))):
                    for one in (one for one in spec["containers"] if one["name"] == name and "command" not in one):
                        set_here = {entry["name"].removeprefix(prefix).lower() for entry in one["env"]}
                        given_here = set() if name == "source" else settings - set(own[name])
                        self.assertLessEqual((set_here & settings) - given_here, set(own[name]))

    @unittest.skipUnless(program("source") or os.environ.get("FLEXFEED_REQUIRE_PEERS"), "the programs are not built")
    def test_what_the_chart_knows_wins_over_a_file_of_others(self):
        source = next(one for _, _, spec in pods(scenario("existing-config")) for one in spec["containers"] if one["name"] == "source")
        shown = json.loads(self.check(source, {}, "show", "--json"))
        values = {one["key"]: one["value"] for one in shown["settings"]}
        self.assertEqual(values["public_address"], "feeds.example.org:4433")
        self.assertEqual(values["multicast_ttl"], "0")
        self.assertEqual(values["amt_relay"], "relay.example.org=127.0.0.1:2268")
        self.assertTrue(values["cert"].endswith("/tls/tls.crt"), values["cert"])
        self.assertEqual(values["retention"], "7")

    def check(self, one, known, command="check", *flags):
        """Has a container's program check its settings; returns what it prints."""
        with tempfile.TemporaryDirectory() as folder:
            etc = pathlib.Path(folder) / "etc"
            for place, text in (("database/url", "postgresql://u:p@h/d"), ("link/link", LINK), ("files/webhook-secret", "s" * 32)):
                (etc / place).parent.mkdir(parents=True)
                (etc / place).write_text(text)
            (etc / "config").mkdir()
            if any(entry.get("value", "").endswith("/config/source.toml") for entry in one["env"]):
                (etc / "config" / "source.toml").write_text(FILE_OF_OTHERS)
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
                [program(one["name"]), "config", command, *flags], env=environment, cwd=folder, capture_output=True, text=True, check=False
            )
            said = done.stdout + done.stderr
            self.assertEqual(done.returncode, 0, said)
            self.assertNotRegex(said, r"(?i)no such setting|is .* meant|did you mean", said)
            return done.stdout


if __name__ == "__main__":
    unittest.main()
