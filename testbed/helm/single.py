"""One source with everything that belongs to it on a cluster, and a receiver outside of it."""

import base64
import os
import pathlib
import re
import shutil
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "docker"))

from chart import ROOT  # noqa: E402
from growing import Feed  # noqa: E402
from kube import Cluster, Failed, run, say, wait  # noqa: E402
from outside import Receiver  # noqa: E402

RELEASE = "flexfeed"
QUIC, AMT = 30433, 30268
# Entries a second while things are broken, so few that a source may be away for minutes: what leaves the feed's document
# (growing.WINDOW) before it is polled again is lost by the feed.
RATE = 1


def merged(base, over):
    """The values with others over them."""
    out = dict(base)
    for key, value in over.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


class Single:
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
        """Values for the chart."""
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
        for what, port, part in (
            ("the source's metrics, which say that it publishes", 8090, 'flexfeed_source_lease_held{channel="test"} 1'),
            ("the relay's metrics", 8091, "flexfeed_relay_gateways"),
        ):
            wait(what, lambda port=port, part=part: part in self.cluster.page("flexfeed-source-pods", port, "/metrics"), 60)
        if "setup" not in self.cluster.kubectl("exec", "deployment/flexfeed-console", "--", "/usr/bin/flexfeed-console", "setup-link"):
            raise Failed("the console prints no link for the first operator")
        wait("the console", lambda: self.cluster.page("flexfeed-console", 80, "/readyz"), 60)

    def keeps_console(self):
        """An upgrade to a console whose image is not there takes no request away from the one that answers, and a rollback undoes it."""
        missing = {"image": {"digests": {"console": f"sha256:{'0' * 64}"}}}
        self.cluster.install(RELEASE, merged(self.values(), missing), verb="upgrade", waits=False)
        if self.trick == "leads-anywhere":
            self.cluster.kubectl("patch", "service", "flexfeed-console", "-p", '{"spec": {"publishNotReadyAddresses": true}}')
        # The kubelet asks the registry first, which may take its time not to answer.
        wait("a console without an image", self._stuck_console, 300)
        # If requests go there as well, it gets about every second one.
        for _ in range(20):
            self.cluster.page("flexfeed-console", 80, "/healthz")
        self.cluster.helm("rollback", RELEASE, "--wait", "--timeout", self.patience)
        wait("the end of it", lambda: not self._stuck_console(), 60)
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
        self._all_there()

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

    def refuses_password(self):
        """An upgrade with another password than the database has is refused, and changes nothing."""
        if self.trick == "no-secret":
            self.cluster.kubectl("delete", "secret", "flexfeed-database")
        try:
            self._install(merged(self.values(), {"database": {"bundled": {"password": "another"}}}), verb="upgrade")
        except Failed as error:
            if "database.bundled.password" not in str(error):
                raise
        else:
            raise Failed("an upgrade took another password")
        self._all_there()

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
        """The line of the console: a release with a receiver alone, in another namespace, is on the rung amt as well. Its Service can go and come."""
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
            for served in (False, True):
                switch = ["--set", f"receiver.service.enabled={str(served).lower()}"]
                inside.install("flexfeed-receiver", values, *lines, *switch, verb="upgrade", patience=self.patience)
                services = [one["metadata"]["name"] for one in inside.get("services")]
                if services != ["flexfeed-receiver-receiver"] * served:
                    raise Failed(f"receiver.service.enabled={served}: the Services are {services}")
            wait("the receiver inside by its new Service", on_amt, 90)
        finally:
            if not self.options.keep:
                inside.remove()

    def leaves(self):
        """An uninstall removes what it made but for the volumes and the database's password; the next install goes on with them."""
        self.cluster.helm("uninstall", RELEASE, "--wait", "--timeout", "2m")
        wait("the end of all pods", lambda: not self.cluster.get("pods"), 120)
        left = self.cluster.kubectl("get", "all,secrets,pvc,pdb", "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name").split()
        if [one for one in left if not one.startswith("persistentvolumeclaim/")] != ["secret/flexfeed-database"]:
            raise Failed(f"an uninstall leaves {left}")
        if self.trick == "loses-volumes":
            self.cluster.kubectl("delete", "pvc", "--all", "--wait=true")
            self._volumes("data-flexfeed-postgres-0", "data-flexfeed-source-0")
        self._install(self.values())
        self._all_there()

    STAGES = (
        installs, answers, keeps_console, climbs, survives_source, survives_relay, survives_crash, survives_database,
        refuses_password, upgrades, receives_inside, leaves,
    )

    # --- what they are made of

    def _install(self, values, verb="install"):
        self.cluster.install(RELEASE, values, verb=verb, patience=self.patience)

    def _all_there(self):
        """Nothing was lost or repeated, and what is new comes by the relay again."""
        self.feed.rate(0)
        self.receiver.wait_all(self.feed.all(), 120)

        def look():
            before = self.receiver.wait_rung("amt", 120)["via"]["flow"]
            self.feed.add(5)
            self.receiver.wait_all(self.feed.all(), 60)
            now = self.receiver.wait_rung("amt", 120)
            if now["via"]["flow"] - before < 5:
                raise Failed(f"new entries came by {now['via']}, not by the flow")
            return True

        wait("new entries by the flow", look, 120)
        self.feed.rate(RATE)

    def _delete(self, pod):
        before = self.cluster.get("pod", pod)["metadata"]["uid"]
        self.cluster.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
        wait(f"another {pod}", lambda: self.cluster.ready(pod, before), 180)

    def _stuck_console(self):
        """The pod of a console that is in the network, but whose image is not there."""
        for pod in self.cluster.get("pods", None, "-l", "app.kubernetes.io/component=console"):
            states = pod["status"].get("containerStatuses", [])
            if pod["status"].get("podIP") and any("Image" in one["state"].get("waiting", {}).get("reason", "") for one in states):
                return pod["metadata"]["name"]
        return None

    def _restarts(self, container):
        states = self.cluster.get("pod", "flexfeed-source-0")["status"]["containerStatuses"]
        return next(one["restartCount"] for one in states if one["name"] == container)

    def _settings(self):
        data = self.cluster.get("secret", "flexfeed-source-config")["data"]
        return base64.b64decode(data["flexfeed-source-0.toml"]).decode()

    def _link(self, label):
        text = self.cluster.kubectl(
            "exec", "flexfeed-source-0", "-c", "source", "--", "/usr/bin/flexfeed-source", "token", "create", "--label", label
        )
        return re.search(r"flexfeed://[^'\s]+", text)[0]

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
