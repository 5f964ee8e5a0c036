"""Tests of docs/kubernetes.md: its values and commands are rendered, its objects validated. They need no cluster."""

import base64
import pathlib
import re
import shlex
import tempfile
import unittest

import kubernetes_validate
import yaml
from chart import CHART, ROOT, rendered

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
VERSIONS = ("1.25", "1.33", "1.37")
# Options of `helm install` and `helm upgrade` that `helm template` knows nothing of, and how many words they have.
NOT_RENDERED = {"--wait": 1, "--create-namespace": 1, "--reset-then-reuse-values": 1, "--namespace": 2, "-n": 2}


def blocks(language):
    """The page's blocks in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def commands():
    """The words of all lines of shells, those that end with a backslash put together."""
    for block in blocks("sh"):
        for line in block.replace("\\\n", " ").splitlines():
            yield shlex.split(line)


class Page(unittest.TestCase):
    """docs/kubernetes.md."""

    def test_its_values_are_taken(self):
        count = 0
        for block in (one for one in blocks("yaml") if "apiVersion" not in one):
            with self.subTest(block), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "values.yaml"
                path.write_text(block)
                self.assertTrue(rendered("-f", path, "--set", "publicAddress=feeds.example.org"))
                count += 1
        self.assertGreaterEqual(count, 4)

    def test_its_installs_are_taken(self):
        count = 0
        for words in (one for one in commands() if one[:2] in (["helm", "install"], ["helm", "upgrade"])):
            release, chart, *rest = words[2:]
            self.assertEqual((ROOT / chart).resolve(), CHART)
            options = []
            while rest:
                skip = NOT_RENDERED.get(rest[0])
                if not skip:
                    options.append(rest[0])
                rest = rest[skip or 1:]
            with self.subTest(words):
                self.assertTrue(rendered(*options, release=release))
                count += 1
        self.assertGreaterEqual(count, 5)

    def test_its_objects_are_valid(self):
        found = [yaml.safe_load(one) for one in blocks("yaml") if "apiVersion" in one]
        self.assertTrue(found)
        for one in found:
            for version in VERSIONS:
                kubernetes_validate.validate(one, version, strict=True)

    def test_a_password_of_ones_own_is_where_the_chart_looks_for_it(self):
        words = next(one for one in commands() if "flexfeed-own" in one)
        said = dict(one.removeprefix("--from-literal=").split("=", 1) for one in words if one.startswith("--from-literal="))
        objects = rendered("--set", f"database.bundled.password={said['password']}")
        made = next(one for one in objects if one["kind"] == "Secret" and one["metadata"]["name"] == "flexfeed-database")["data"]
        self.assertEqual(said, {key: base64.b64decode(value).decode() for key, value in made.items()})

    def test_the_backup_has_what_the_chart_makes(self):
        job = next(yaml.safe_load(one) for one in blocks("yaml") if "kind: CronJob" in one)["spec"]["jobTemplate"]["spec"]["template"]
        objects = rendered("--set", "networkPolicy.enabled=true")
        secret = next(one for one in job["spec"]["volumes"] if one["name"] == "database")["secret"]
        made = next(one for one in objects if one["kind"] == "Secret" and one["metadata"]["name"] == secret["secretName"])
        self.assertIn(secret["items"][0]["key"], made["data"])
        source = next(one for one in objects if one["kind"] == "StatefulSet" and one["metadata"]["name"] == "flexfeed-source")
        pod = source["spec"]["template"]["spec"]
        self.assertEqual(job["spec"]["containers"][0]["image"], pod["containers"][0]["image"])
        for key, value in job["spec"]["securityContext"].items():
            self.assertEqual(pod["securityContext"][key], value)
        self.assertEqual(job["spec"]["containers"][0]["securityContext"], pod["containers"][0]["securityContext"])
        policy = next(one for one in objects if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "flexfeed-postgres")
        let_in = [one["podSelector"]["matchLabels"].items() for one in policy["spec"]["ingress"][0]["from"]]
        self.assertTrue(any(one <= job["metadata"]["labels"].items() for one in let_in))
        for service in (one for one in objects if one["kind"] == "Service"):
            self.assertFalse(service["spec"]["selector"].items() <= job["metadata"]["labels"].items(), "a Service leads to the job")


if __name__ == "__main__":
    unittest.main()
