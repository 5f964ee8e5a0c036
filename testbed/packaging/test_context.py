"""The context of deploy/docker/Dockerfile, without a build: cargo understands what the images' dependencies are built of, and our
programs take nothing in that is not there when they are compiled."""

import fnmatch
import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))

# Folders without sources, which .dockerignore leaves out: build outputs and downloads.
LEFT_OUT = {"target", "node_modules", ".git", "__pycache__"}


def lines(path):
    """Those of a file of the repository that say something."""
    with open(f"{ROOT}/{path}", encoding="utf-8") as file:
        return [line for line in map(str.strip, file) if line and not line.startswith("#")]


def is_in_context(path, rules):
    """Whether Docker sends a file: the last line that names it, or a folder that it is in, decides."""
    parts = path.split("/")
    places = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    sent = True
    for rule in rules:
        pattern = rule.lstrip("!")
        # One that may be anywhere: also at the top.
        anywhere = pattern.startswith("**/")
        pattern = pattern.removeprefix("**/")
        depth = pattern.count("/")
        for place in places:
            tail = "/".join(place.split("/")[-depth - 1 :]) if anywhere else place
            # A star does not reach across folders.
            if tail.count("/") == depth and fnmatch.fnmatchcase(tail, pattern):
                sent = rule.startswith("!")
    return sent


def context():
    """All files that Docker sends."""
    rules, found = lines(".dockerignore"), set()
    for folder, below, names in os.walk(ROOT):
        below[:] = [name for name in below if name not in LEFT_OUT]
        at = os.path.relpath(folder, ROOT)
        found |= {os.path.normpath(os.path.join(at, name)) for name in names}
    return {path for path in found if is_in_context(path, rules)}


def copied(stage):
    """Returns the files and folders of the context that a stage of the Dockerfile copies."""
    with open(f"{ROOT}/deploy/docker/Dockerfile", encoding="utf-8") as file:
        text = re.search(rf"^FROM \S+ AS {stage}\n(.*?)^FROM ", file.read(), re.M | re.S).group(1)
    return [name for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.M) for name in line.split()]


def files_of(stage):
    """Returns the files of the context in a stage."""
    tops = copied(stage)
    return {path for path in context() if any(path == top or path.startswith(f"{top}/") for top in tops)}


def strange(path, text, there):
    """Returns the files that a source file includes and that are not among the files `there`. Tests are not compiled for the images."""
    package = "/".join(path.split("/")[:2])
    code = re.split(r"^#\[cfg\(test\)\]\nmod \w+ \{", text, maxsplit=1, flags=re.M)[0]
    # A build script's outputs follow from paths that it names.
    is_script = path.endswith("/build.rs")
    wanted = [(package, name) for name in re.findall(r'["=](\.\./[^"]*)"', code)] if is_script else []
    for macro, argument in re.findall(r'\b(include(?:_str|_bytes)?|migrate)!\(\s*(concat!\([^;]*?\)|"[^"]*"|[^")]*)\s*\)', "" if is_script else code):
        if literal := re.fullmatch(r'"([^"]*)"', argument):
            wanted.append((package if macro == "migrate" else os.path.dirname(path), literal.group(1)))
        elif beside := re.search(r'env!\("CARGO_MANIFEST_DIR"\),\s*"/([^"]*)"', argument):
            wanted.append((package, beside.group(1)))
        elif 'env!("OUT_DIR")' not in argument:
            return [f"{macro}!({argument}), a form that this test does not read"]
    wanted = {os.path.normpath(os.path.join(folder, name)) for folder, name in wanted}
    return sorted(one for one in wanted if one not in there and not any(name.startswith(f"{one}/") for name in there))


class Context(unittest.TestCase):
    """Build context of `docker compose up --build`."""

    def test_what_is_sent(self):
        """The sources, and nothing that was built."""
        sent = context()
        for path in ("Cargo.lock", "crates/store/build.rs", "migrations/sqlite", "web/package.json", "fuzz/bodies/Cargo.toml", "deploy/docker/skeleton.sh"):
            self.assertTrue(any(one == path or one.startswith(f"{path}/") for one in sent), path)
        rules = lines(".dockerignore")
        for path in ("README.md", "docs/protocol.md", "fuzz/Cargo.toml", "web/dist/index.html", "web/e2e/a.ts", "crates/x/target/y", "testbed/docker/run.py"):
            self.assertFalse(is_in_context(path, rules), path)

    def test_cargo_understands_the_skeleton(self):
        """The manifests and stand-ins of which the layer of dependencies is built; with a manifest that is wrong it does not."""
        host = re.search(r"^host: (.*)$", subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout, re.M).group(1)
        # The downloads for this machine's build are there, and no more.
        metadata = ["cargo", "metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", host]
        with tempfile.TemporaryDirectory() as place:
            for path in files_of("skeleton") - {"deploy/docker/skeleton.sh"}:
                os.makedirs(os.path.dirname(f"{place}/{path}"), exist_ok=True)
                shutil.copyfile(f"{ROOT}/{path}", f"{place}/{path}")
            subprocess.run(["sh", f"{ROOT}/deploy/docker/skeleton.sh"], cwd=place, check=True)

            def understood():
                return subprocess.run(metadata, cwd=place, capture_output=True, text=True, check=False)

            done = understood()
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(f"{place}/services/relay/Cargo.toml", "a", encoding="utf-8") as manifest:
                manifest.write('\n[dependencies.elsewhere]\npath = "../../docs/elsewhere"\n')
            self.assertIn("docs/elsewhere", understood().stderr)

    def test_programs_take_in_what_is_there(self):
        """All that is compiled into them; and something that is not there is noticed."""
        there = files_of("compiled") | {"web/dist/index.html"}
        ours = [path for path in there if re.match(r"(crates|services)/[^/]+/(src/.*|build)\.rs$", path)]
        # Files of tests alone.
        ours = [path for path in ours if not re.search(r"/tests(/|\.rs$)", path)]
        self.assertGreater(len(ours), 100)
        texts = {}
        for path in ours:
            with open(f"{ROOT}/{path}", encoding="utf-8") as file:
                texts[path] = file.read()
        self.assertEqual({path: missing for path, text in texts.items() if (missing := strange(path, text, there))}, {})
        self.assertTrue(any("migrate!" in text for text in texts.values()))
        wrong = ('include_str!("../../../README.md")', 'migrate!("../../nowhere")', 'include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/amt.md"))', "include_bytes!(PATH)")
        for text in wrong:
            self.assertTrue(strange("crates/store/src/lib.rs", text, there), text)
        self.assertTrue(strange("crates/store/build.rs", 'println!("cargo:rerun-if-changed=../../docs")', there))


if __name__ == "__main__":
    unittest.main()
