"""Relays on nodes on a cluster: in the network of a node, with the one right that capturing packets needs."""

import json

from kube import Cluster, Failed, run, wait
from single import RELEASE, Single, merged

# By which nodes are chosen; the chart's own may be in use.
LABEL = "flexfeed.org/relay-test"


class Nodes(Single):
    """One installation with relays alone, for a source elsewhere."""

    labelled = ""

    def values(self):
        """Values for the chart."""
        own = {
            "source": {"enabled": False},
            "console": {"enabled": False},
            "relay": {"mode": "daemonset", "nodeSelector": {"flexfeed.org/relay": None, LABEL: "true"}},
        }
        return merged(merged(super().values(), own), self.over)

    def installs(self):
        """A node that gets the label gets a relay, which runs with no right but NET_RAW and is ready."""
        self.cluster = Cluster(self.namespace, keep_out=False)
        self._install(self.values())
        if self.cluster.get("pods"):
            raise Failed("there is a relay before a node was chosen")
        self.labelled = json.loads(run("kubectl", "get", "nodes", "-o", "json"))["items"][0]["metadata"]["name"]
        run("kubectl", "label", "node", self.labelled, f"{LABEL}=true", "--overwrite")
        (pod,) = wait("a relay on that node", lambda: self.cluster.get("pods"), 60)
        if pod["spec"]["containers"][0]["securityContext"]["capabilities"] != {"drop": ["ALL"], "add": ["NET_RAW"]}:
            raise Failed(f"the relay has other rights: {pod['spec']['containers'][0]['securityContext']}")
        wait("the relay to be ready", lambda: self.cluster.ready(pod["metadata"]["name"]), 120)

    def answers(self):
        """`helm test` is content, and the relay's metrics answer at the node's port."""
        self.cluster.helm("test", RELEASE, "--timeout", "2m")
        wait("the relay's metrics", lambda: "flexfeed_relay_gateways" in self.cluster.page("flexfeed-relay", 8091, "/metrics"), 60)

    def end(self):
        """Removes all that it made, the node's label, too."""
        if self.labelled and not self.options.keep:
            run("kubectl", "label", "node", self.labelled, f"{LABEL}-")
        super().end()

    STAGES = (installs, answers)
