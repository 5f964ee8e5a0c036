"""The chart on a real cluster: installed, tried, upgraded, rolled back and removed, while a receiver outside misses nothing.

./dev test-kube --help has the options. Each claim has its own stage, and `--sabotage` breaks one after the other: the stage
that it belongs to has to fail then.
"""

import argparse
import os
import pathlib
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "docker"))

from chart import ROOT  # noqa: E402
from growing import Feed  # noqa: E402
from kube import Cluster, Failed, run, say, wait  # noqa: E402
from outside import Receiver  # noqa: E402

RELEASE = "flexfeed"
QUIC, AMT = 30433, 30268
# Entries a second while things are broken; the feed is polled each second and shows its last 300.
RATE = 5

# What is broken on purpose: which stage has to notice it, and by what values or by what trick of this program.
SABOTAGE = {
    "unhealthy": ("installs", {"source": {"settings": {"database_url": "nonsense"}}}, ""),
    "unrestricted": ("installs", {"source": {"hostNetwork": True}}, ""),
    "no-relay": ("climbs", {"relay": {"enabled": False}}, ""),
    "forgets-certificate": ("survives_source", {"source": {"persistence": {"enabled": False}}}, ""),
    "forgets-database": ("survives_database", {"database": {"bundled": {"persistence": {"enabled": False}}}}, ""),
    "no-rollback": ("upgrades", {}, "no-rollback"),
    "wrong-link": ("receives_inside", {}, "wrong-link"),
    "loses-volumes": ("leaves", {}, "loses-volumes"),
}


def merged(base, over):
    """The values with others over them."""
    out = dict(base)
    for key, value in over.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def arguments():
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev test-kube", description=__doc__)
    parser.add_argument("--prefix", default=os.environ.get("FLEXFEED_IMAGE_PREFIX", "flexfeed"), help="of the images' names")
    parser.add_argument("--registry", default="", help="of the images")
    parser.add_argument("--tag", default="latest", help="of the images")
    parser.add_argument("--postgres", default="postgres:15", help="the database's image")
    parser.add_argument("--postgres-user", type=int, default=999, help="whom its server runs as")
    parser.add_argument("--pull", default="IfNotPresent", help="image.pullPolicy; Never where images are only loaded")
    parser.add_argument("--load", metavar="COMMAND", help="brings images into the cluster, such as 'kind load docker-image'")
    parser.add_argument("--receiver", help="the program flexfeed-receiver of this machine; by default that of the target folder")
    parser.add_argument("--wrapper", default="", help="what stands before it, such as 'ip netns exec outside'")
    parser.add_argument("--node-address", help="where this machine reaches the node; by default its InternalIP")
    parser.add_argument("--feed-address", help="where pods reach this machine; by default that which it reaches the node by")
    parser.add_argument("--volumes", metavar="FOLDER", help="makes volumes in this folder of the node, for clusters that make none")
    parser.add_argument("--sabotage", nargs="*", metavar="NAME", help=f"breaks these on purpose, or all: {', '.join(SABOTAGE)}")
    parser.add_argument("--only", nargs="*", metavar="STAGE", help="plays these stages alone, beside the first ones")
    parser.add_argument("--keep", action="store_true", help="leaves everything as it is in the end")
    return parser.parse_args()


class Stage:
    """One installation, from beginning to end."""

    def __init__(self, options, name, over=None, trick="", patience="4m"):
        self.options = options
        self.trick = trick
        self.patience = patience
        self.namespace = f"flexfeed-test-{name}"
        self.over = over or {}
        self.feed = Feed()
        self.cluster = None
        self.receiver = None
        self.volumes = []
        self.node = options.node_address or self._node()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.connect((self.node, 9))
            self.here = options.feed_address or one.getsockname()[0]

    @staticmethod
    def _node():
        address = "jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}"
        return run("kubectl", "get", "nodes", "-o", address).split()[0]

    def values(self):
        """What the chart is told."""
        options = self.options
        own = {
            "publicAddress": self.node,
            "image": {"registry": options.registry, "prefix": options.prefix, "tag": options.tag, "pullPolicy": options.pull},
            "database": {"bundled": {"image": options.postgres, "runAsUser": options.postgres_user, "persistence": {"size": "1Gi"}}},
            "source": {
                "service": {"type": "NodePort", "nodePort": QUIC, "relayNodePort": AMT},
                "channels": [{"name": "test", "feeds": [{"url": f"http://{self.here}:{self.feed.port}/feed.atom", "interval": "1s", "local": True}]}],
            },
        }
        return merged(own, self.over)

    # --- stages, in their order

    def installs(self):
        """The chart installs with restricted pods, and everything is ready."""
        self.cluster = Cluster(self.namespace)
        self._volumes("data-flexfeed-postgres-0", "data-flexfeed-source-0")
        self.feed.add(20)
        self._install(self.values())
        for pod in self.cluster.get("pods"):
            if not self.cluster.ready(pod["metadata"]["name"]):
                raise Failed(f"{pod['metadata']['name']} is not ready after the install")

    def answers(self):
        """`helm test` is content; metrics and the console answer."""
        self.cluster.helm("test", RELEASE, "--timeout", "2m")
        seen = self.cluster.page("flexfeed-source-pods", 8090, "/metrics")
        if 'flexfeed_source_lease_held{channel="test"} 1' not in seen:
            raise Failed("the source's metrics do not say that it publishes")
        if "flexfeed_relay_gateways" not in self.cluster.page("flexfeed-source-pods", 8091, "/metrics"):
            raise Failed("the relay's metrics do not answer")
        if "setup" not in self.cluster.kubectl("exec", "deployment/flexfeed-console", "--", "/usr/bin/flexfeed-console", "setup-link"):
            raise Failed("the console prints no link for the first operator")
        wait("the console", lambda: self.cluster.page("flexfeed-console", 80, "/readyz"), 60)

    def climbs(self):
        """A receiver outside of the cluster is on the rung amt by the relay's port of the node, and gets what comes."""
        link = self._link("outside")
        if f"@{self.node}:{QUIC}?" not in link:
            raise Failed(f"the link leads elsewhere: {link}")
        self.receiver = Receiver(self._receiver(), link, self.options.wrapper.split())
        channel = self.receiver.wait_rung("amt")
        if channel["relay"] != f"{self.node}:{AMT}":
            raise Failed(f"its relay is {channel['relay']}")
        before = channel["via"]["flow"]
        self.feed.add(10)
        self.receiver.wait_all(self.feed.all())
        _, channel = self.receiver.status()
        if channel["via"]["flow"] - before < 10:
            raise Failed(f"new entries came by {channel['via']}, not by the flow")
        self.feed.rate(RATE)

    def survives_source(self):
        """The source's pod is killed: another one goes on as the same source."""
        self._delete("flexfeed-source-0")
        self._all_there()

    def survives_relay(self):
        """The relay's process alone is killed."""
        before = self._restarts("relay")
        if not self.cluster.crash("flexfeed-source-0", "flexfeed-relay"):
            say("!!! SKIPPED: this machine is not the pod's node, so the relay alone cannot be killed")
            return
        wait("another relay in its place", lambda: self._restarts("relay") > before, 60)
        self._all_there()

    def survives_crash(self):
        """The source's process is killed in its pod, with SIGKILL."""
        before = self._restarts("source")
        if not self.cluster.crash("flexfeed-source-0", "flexfeed-source"):
            say("!!! SKIPPED: this machine is not the pod's node, so the source alone cannot be killed")
            return
        wait("another source in its place", lambda: self._restarts("source") > before, 60)
        self._all_there()

    def survives_database(self):
        """The database's pod is killed: the source waits for it, and its pod stays."""
        before = self.cluster.get("pod", "flexfeed-source-0")["metadata"]["uid"]
        self._delete("flexfeed-postgres-0")
        self._all_there()
        found = self.cluster.get("pod", "flexfeed-source-0")
        if found["metadata"]["uid"] != before:
            raise Failed("the source's pod was replaced")

    def upgrades(self):
        """An upgrade with other settings replaces the source, and a rollback brings the old settings back."""
        before = self.cluster.get("pod", "flexfeed-source-0")["metadata"]["uid"]
        self._install(merged(self.values(), {"source": {"retention": 100000}}), verb="upgrade")
        now = wait("another source", lambda: self.cluster.ready("flexfeed-source-0", before), 120)
        if 'retention = "100000"' not in self._settings():
            raise Failed("the new settings are not there")
        self._all_there()
        if self.trick != "no-rollback":
            self.cluster.helm("rollback", RELEASE, "1", "--wait", "--timeout", self.patience)
            wait("the source of before", lambda: self.cluster.ready("flexfeed-source-0", now), 120)
        if "retention" in self._settings():
            raise Failed("the new settings are there after a rollback")
        self._all_there()

    def receives_inside(self):
        """The line of the console: a release with a receiver alone, in another namespace, is on the rung amt as well."""
        inside = Cluster(f"{self.namespace}-receiver")
        try:
            self._volumes("data-flexfeed-receiver-receiver-0", cluster=inside)
            values = {"image": self.values()["image"], "receiver": {"persistence": {"size": "100Mi"}}}
            switches = ["source.enabled=false", "relay.enabled=false", "console.enabled=false", "receiver.enabled=true"]
            link = self._link("inside")
            if self.trick == "wrong-link":
                link = link.replace("flexfeed://", "flexfeed://x", 1)
            lines = [word for switch in switches for word in ("--set", switch)]
            lines += ["--set-string", f"receiver.link={link}"]
            inside.install("flexfeed-receiver", values, *lines, patience=self.patience)
            inside.helm("test", "flexfeed-receiver", "--timeout", "1m")

            def on_amt():
                text = inside.page("flexfeed-receiver-receiver", 80, "/status.json")
                return '"rung":"amt"' in text.replace(" ", "")

            wait("the receiver inside on amt", on_amt, 90)
        finally:
            if not self.options.keep:
                inside.remove()

    def leaves(self):
        """An uninstall removes what it made but for the volumes and the database's password; the next install goes on with them."""
        self.cluster.helm("uninstall", RELEASE, "--wait", "--timeout", "2m")
        left = self.cluster.kubectl("get", "all,secrets,pvc,pdb", "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name").split()
        if [one for one in left if not one.startswith("persistentvolumeclaim/")] != ["secret/flexfeed-database"]:
            raise Failed(f"an uninstall leaves {left}")
        if self.trick == "loses-volumes":
            self.cluster.kubectl("delete", "pvc", "--all", "--wait=true")
            self._volumes("data-flexfeed-postgres-0", "data-flexfeed-source-0")
        self._install(self.values())
        self._all_there()

    STAGES = (
        installs, answers, climbs, survives_source, survives_relay, survives_crash, survives_database, upgrades,
        receives_inside, leaves,
    )

    # --- what they are made of

    def _install(self, values, verb="install"):
        self.cluster.install(RELEASE, values, verb=verb, patience=self.patience)

    def _all_there(self):
        """Nothing was lost or repeated, and the receiver is back on the relay."""
        self.receiver.wait_rung("amt", 120)
        self.feed.rate(0)
        self.receiver.wait_all(self.feed.all(), 120)
        self.feed.rate(RATE)

    def _delete(self, pod):
        before = self.cluster.get("pod", pod)["metadata"]["uid"]
        self.cluster.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
        wait(f"another {pod}", lambda: self.cluster.ready(pod, before), 180)

    def _restarts(self, container):
        states = self.cluster.get("pod", "flexfeed-source-0")["status"]["containerStatuses"]
        return next(one["restartCount"] for one in states if one["name"] == container)

    def _settings(self):
        import base64

        data = self.cluster.get("secret", "flexfeed-source-config")["data"]
        return base64.b64decode(data["flexfeed-source-0.toml"]).decode()

    def _link(self, label):
        text = self.cluster.kubectl(
            "exec", "flexfeed-source-0", "-c", "source", "--", "/usr/bin/flexfeed-source", "token", "create", "--label", label
        )
        return next(word for word in text.split() if word.startswith("flexfeed://"))

    def _receiver(self):
        if self.options.receiver:
            return self.options.receiver
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        for place in (target / "release", target / "debug"):
            if (place / "flexfeed-receiver").exists():
                return place / "flexfeed-receiver"
        found = shutil.which("flexfeed-receiver")
        if not found:
            raise Failed("there is no flexfeed-receiver here: name it with --receiver")
        return found

    def _volumes(self, *claims, cluster=None):
        """Volumes for claims, in a folder of the node, where the cluster makes none by itself."""
        if not self.options.volumes:
            return
        namespace = (cluster or self.cluster).namespace
        for claim in claims:
            name = f"{namespace}-{claim}"
            place = pathlib.Path(self.options.volumes) / name
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            # Such folders are not handed over to the pod's user.
            place.chmod(0o777)
            self.volumes.append((name, place))
            self.cluster.apply({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": "20Gi"}, "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": str(place)},
                    "claimRef": {"namespace": namespace, "name": claim},
                },
            })

    def end(self):
        """Removes all that it made."""
        self.feed.close()
        if self.receiver:
            self.receiver.stop()
        if self.options.keep:
            return
        if self.cluster:
            self.cluster.remove()
        for name, place in self.volumes:
            run("kubectl", "delete", "pv", name, "--ignore-not-found")
            shutil.rmtree(place, ignore_errors=True)
        if self.receiver:
            shutil.rmtree(self.receiver.folder, ignore_errors=True)


def play(options, name, over=None, trick="", last=None):
    """Plays all stages, or until the stage `last`. Returns the stage that failed and why, or nothing."""
    # What is broken is not waited for as long as what has to work.
    stage = Stage(options, name, over, trick, "90s" if last else "4m")
    # Those that the others stand on.
    needed = {"installs", "climbs", *(options.only or ()), *([last] if last else ())}
    try:
        for one in Stage.STAGES:
            if (options.only or last) and one.__name__ not in needed:
                continue
            say(f"{name}: {one.__name__}: {one.__doc__}")
            try:
                one(stage)
            except (Failed, subprocess.TimeoutExpired) as error:
                return one.__name__, str(error)
            if one.__name__ == last:
                break
        return None
    finally:
        stage.end()


def load(options):
    """Brings the images into the cluster."""
    registry = f"{options.registry}/" if options.registry else ""
    names = [f"{registry}{options.prefix}/{part}:{options.tag}" for part in ("source", "relay", "receiver", "console")]
    for image in [*names, options.postgres]:
        run(*options.load.split(), image)


def main():
    """The exit code: 0 if everything holds, or, with --sabotage, if everything that was broken was noticed."""
    options = arguments()
    if options.load:
        load(options)
    if options.sabotage is None:
        failed = play(options, "plain")
        if failed:
            say(f"FAILED: {failed[0]}: {failed[1]}")
            return 1
        say("everything holds")
        return 0
    unnoticed = 0
    for name in options.sabotage or SABOTAGE:
        stage, over, trick = SABOTAGE[name]
        failed = play(options, name, over, trick, last=stage)
        if failed and failed[0] == stage:
            say(f"{name}: noticed by {stage}: {failed[1].splitlines()[0][:300]}")
        else:
            unnoticed += 1
            say(f"{name}: NOT noticed by {stage}: {failed}")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
