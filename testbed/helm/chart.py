"""Helpers of the chart's tests: rendering, and finding objects in the output."""

import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "flexfeed"
SCENARIOS = sorted((CHART / "ci").glob("*.yaml"))
# The Kubernetes that is rendered for where a test does not say another one.
KUBERNETES = "1.33.0"


def helm(*arguments):
    """Runs helm; returns its exit code, what it printed, and what it complained of."""
    program = os.environ.get("HELM", "helm")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def rendered(*arguments, release="flexfeed", kubernetes=KUBERNETES, chart=CHART, fresh=False):
    """Returns the objects that `helm template` renders with these arguments. A failure is an AssertionError.

    It is made once for the same arguments, unless `fresh` asks for another time.
    """
    words = ("template", release, chart, "--namespace", "feeds", "--kube-version", kubernetes, *arguments)
    code, out, complaints = helm(*words) if fresh or chart != CHART else _remembered(*words)
    assert code == 0, f"helm template {arguments}: {complaints}"
    return [one for one in yaml.safe_load_all(out) if one]


_remembered = functools.cache(helm)


def given(*pairs):
    """The values as arguments."""
    return [word for pair in pairs for word in ("--set", pair)]


def scenario(name, *arguments, **others):
    """The objects of a scenario of the folder ci."""
    return rendered("-f", CHART / "ci" / f"{name}.yaml", *arguments, **others)


def refused(*arguments, release="flexfeed", kubernetes=KUBERNETES, chart=CHART):
    """Returns the error of `helm template` with these arguments; an AssertionError if it succeeds."""
    code, _, complaints = helm("template", release, chart, "--kube-version", kubernetes, *arguments)
    assert code != 0, f"helm template took {arguments}"
    return complaints


def answered(text, *arguments, expect=0):
    """Returns the rendering of a template with these arguments, in a copy of the chart; or, with expect=1, the error."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "flexfeed"
        shutil.copytree(CHART, copy)
        (copy / "notes.txt").write_text((copy / "templates" / "NOTES.txt").read_text())
        said = f'{{{{ define "said" }}}}{text}{{{{ end }}}}kind: Said\nmetadata: {{name: said}}\ntext: {{{{ include "said" . | toJson }}}}\n'
        (copy / "templates" / "said.yaml").write_text(said)
        if expect:
            return refused(*arguments, chart=copy)
        return find(rendered(*arguments, chart=copy), "Said", "said")["text"]


def notes(*arguments):
    """Returns the notes of an install with these arguments. Helm prints them for clusters only."""
    return answered('{{ tpl (.Files.Get "notes.txt") . }}', *arguments)


def kinds(objects):
    """The objects' kinds and names, for a look at what there is."""
    return sorted(f"{one['kind']}/{one['metadata']['name']}" for one in objects)


def find(objects, kind, name):
    """The one object of that kind and name."""
    found = [one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name]
    assert len(found) == 1, f"{kind}/{name} is there {len(found)} times among {kinds(objects)}"
    return found[0]


def pods(objects):
    """All pods that there will be: (name of what makes them, labels, spec)."""
    for one in objects:
        if one["kind"] in ("StatefulSet", "Deployment", "DaemonSet"):
            template = one["spec"]["template"]
            yield one["metadata"]["name"], template["metadata"]["labels"], template["spec"]
        elif one["kind"] == "Pod":
            yield one["metadata"]["name"], one["metadata"]["labels"], one["spec"]


def container(workload, name):
    """The container of that name of a workload."""
    spec = workload["spec"]["template"]["spec"]
    return next(one for one in spec["containers"] if one["name"] == name)


def variables(holder):
    """The variables of a container that are given as texts."""
    return {one["name"]: one["value"] for one in holder["env"] if "value" in one}
