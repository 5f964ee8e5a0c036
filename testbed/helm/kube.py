"""A cluster as the tests use it: kubectl, helm, and waiting."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from chart import CHART


class Failed(Exception):
    """A claim does not hold."""


def say(text):
    """One line for who watches."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def wait(what, look, seconds, every=0.5):
    """Waits until `look` returns something true, and returns it. What it raises counts as not yet."""
    until = time.monotonic() + seconds
    last = None
    while True:
        try:
            found = look()
            if found:
                return found
        except (Failed, OSError, LookupError, ValueError, StopIteration, subprocess.TimeoutExpired) as error:
            last = error
        if time.monotonic() > until:
            raise Failed(f"{what}: not within {seconds} s{f' ({last})' if last else ''}")
        time.sleep(every)


def run(*command, stdin=None, timeout=600):
    """Runs a command and returns what it printed; `Failed` with its complaint otherwise."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, input=stdin, timeout=timeout, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Cluster:
    """One namespace of a cluster."""

    def __init__(self, namespace, keep_out=True):
        self.namespace = namespace
        labels = {"pod-security.kubernetes.io/enforce": "restricted" if keep_out else "privileged"}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})

    def kubectl(self, *arguments, **others):
        """kubectl in this namespace."""
        return run("kubectl", "--namespace", self.namespace, *arguments, **others)

    def apply(self, *objects):
        """Makes objects."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def get(self, kind, name=None, *arguments):
        """An object, or the list of all of a kind."""
        found = json.loads(self.kubectl("get", kind, *([name] if name else []), *arguments, "-o", "json"))
        return found if name else found["items"]

    def helm(self, *arguments):
        """helm in this namespace."""
        return run(os.environ.get("HELM", "helm"), "--namespace", self.namespace, *arguments)

    def install(self, release, values, *arguments, verb="install", patience="4m", waits=True):
        """Installs or upgrades the chart with these values, and waits until all is ready unless `waits` says no."""
        path = pathlib.Path(f"/tmp/flexfeed-values-{os.getpid()}.json")
        path.write_text(json.dumps(values))
        try:
            return self.helm(verb, release, CHART, "--values", path, *(["--wait"] if waits else []), "--timeout", patience, *arguments)
        except Failed as error:
            raise Failed(f"{error}\n{self.troubles()}") from None
        finally:
            path.unlink()

    def troubles(self):
        """Returns the pods' logs and the last events, for a failure's text."""
        try:
            return self.kubectl("get", "pods", "-o", "wide") + "\n".join(
                self.kubectl("get", "events", "--sort-by=.lastTimestamp").splitlines()[-15:]
            )
        except Failed as error:
            return str(error)

    def page(self, service, port, path):
        """Returns a page of a Service, through the API server. A Service leads to a pod a moment after that is ready."""
        return run("kubectl", "get", "--raw", f"/api/v1/namespaces/{self.namespace}/services/{service}:{port}/proxy{path}")

    def ready(self, pod, other_than=None):
        """Whether a pod is ready; its uid. Not the one that had that uid before."""
        found = self.get("pod", pod)
        uid = found["metadata"]["uid"]
        conditions = {one["type"]: one["status"] for one in found["status"].get("conditions", [])}
        return uid if conditions.get("Ready") == "True" and uid != other_than else None

    def crash(self, pod, program):
        """Kills the process of a container with SIGKILL, where this machine is the pod's node; returns False where it is not."""
        uid = self.get("pod", pod)["metadata"]["uid"]
        marks = (f"pod{uid}", f"pod{uid.replace('-', '_')}")
        for folder in pathlib.Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                group = (folder / "cgroup").read_text()
                name = os.path.basename(os.readlink(folder / "exe"))
            except OSError:
                continue
            if name == program and any(mark in group for mark in marks):
                os.kill(int(folder.name), signal.SIGKILL)
                return True
        return False

    def remove(self):
        """Removes the namespace and all that is in it."""
        self.kubectl("delete", "namespace", self.namespace, "--wait=true", "--timeout=180s")
