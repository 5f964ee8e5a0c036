"""One version: that of the workspace is everywhere where it has to be said again."""

import json
import os
import re
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))

# Locations of the version: the file, and its context.
PLACES = (
    ("Cargo.toml", r'path = "crates/[^"]+", version = "([^"]+)"'),
    ("deploy/docker/Dockerfile", r"^ARG VERSION=(\S+)$"),
    ("helm/flexfeed/Chart.yaml", r"^version: (\S+)$"),
    ("helm/flexfeed/Chart.yaml", r'^appVersion: "?([^"\s]+)"?$'),
    ("docs/install.md", r"flexfeed-(\d+\.\d+\.\d+)-x86_64"),
)


def text(path):
    """Returns the content of a file of the repository."""
    with open(f"{ROOT}/{path}", encoding="utf-8") as file:
        return file.read()


def workspace():
    """The version that ./dev and cargo take."""
    return re.search(r'^\[workspace\.package\]\nversion = "([^"]+)"$', text("Cargo.toml"), re.M).group(1)


class Versions(unittest.TestCase):
    """In all files."""

    def test_all_name_the_same(self):
        """Those of images, chart, documents and the page are the workspace's."""
        wanted = workspace()
        for path, where in PLACES:
            found = re.findall(where, text(path), re.M)
            with self.subTest(path, where=where):
                self.assertTrue(found, "no version is there")
                self.assertEqual(set(found), {wanted})
        for path in ("web/package.json", "web/package-lock.json"):
            self.assertEqual(json.loads(text(path))["version"], wanted, path)
        lock = json.loads(text("web/package-lock.json"))
        self.assertEqual(lock["packages"][""]["version"], wanted)

    def test_packages_take_the_workspace_s(self):
        """No crate of ours has a version of its own, but for those that are no part of the programs."""
        for top in ("crates", "services"):
            for name in os.listdir(f"{ROOT}/{top}"):
                path = f"{top}/{name}/Cargo.toml"
                if os.path.exists(f"{ROOT}/{path}"):
                    self.assertIn("\nversion.workspace = true\n", text(path), path)


if __name__ == "__main__":
    unittest.main()
