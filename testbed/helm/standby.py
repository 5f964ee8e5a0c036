"""Two sources on a cluster, each behind a load balancer with its own relay: one publishes, the other takes over.

Clusters of tests seldom have load balancers. The two addresses of `--balancers` are written into the Services as a load
balancer's controller would do it, and kube-proxy leads from them to the pods.
"""

import json
import pathlib
import tempfile

from kube import Cluster, Failed, run, say, wait
from outside import Receiver
from single import RATE, RELEASE, Single, merged

NAME = "feeds.flexfeed.test"


class Standby(Single):
    """One installation with two sources."""

    def values(self):
        """Values for the chart."""
        first, second = self.options.balancers
        own = {
            "publicAddress": NAME,
            "source": {
                "replicas": 2,
                "tls": {"existingSecret": "source-certificate"},
                "signingKey": {"existingSecret": "signing-key"},
                "service": {"type": "LoadBalancer", "nodePort": None, "relayNodePort": None},
            },
            "relay": {"addresses": [first, f"{second}:2269" if self.trick == "strange-relay" else second]},
        }
        return merged(super().values(), merged(own, self.over))

    def installs(self):
        """Two sources are ready, one of them publishes, and receivers find both by one name."""
        self.cluster = Cluster(self.namespace)
        self._volumes("data-flexfeed-postgres-0", "data-flexfeed-source-0", "data-flexfeed-source-1")
        self._certificate()
        self.feed.add(20)
        # Without --wait, which waits for the load balancers' addresses.
        self.cluster.install(RELEASE, self.values(), waits=False)
        for service, address in zip(("flexfeed-source", "flexfeed-source-1"), self.options.balancers, strict=True):
            status = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
            self.cluster.kubectl("patch", "service", service, "--subresource=status", "--type=merge", "-p", json.dumps(status))
        for pod in ("flexfeed-source-0", "flexfeed-source-1"):
            wait(f"{pod} ready", lambda pod=pod: self.cluster.ready(pod), 240)
        wait("one source that publishes", self._publishes, 180)

    def climbs(self):
        """A receiver outside is on the rung amt by the relay of the source that publishes."""
        hosts = pathlib.Path(tempfile.mkdtemp(prefix="flexfeed-hosts-")) / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{one} {NAME}\n" for one in self.options.balancers))
        own = f'mount --bind {hosts} /etc/hosts && exec "$@"'
        self.receiver = Receiver(self._receiver(), self._link("outside"), ["unshare", "--mount", "sh", "-c", own, "sh"])
        self._on_the_right_relay()
        self.feed.rate(RATE)
        self._all_there()

    def takes_over(self):
        """The pod that publishes is killed: the other one takes over, and nothing is lost."""
        before = self._publishes()
        self.cluster.kubectl("delete", "pod", f"flexfeed-source-{before}", "--grace-period=0", "--force")
        wait("the other one publishes", lambda: self._publishes() == 1 - before, 180)
        self._on_the_right_relay()
        self._all_there()
        wait("both ready again", lambda: all(self.cluster.ready(f"flexfeed-source-{one}") for one in (0, 1)), 180)

    def upgrades(self):
        """An upgrade replaces one after the other, and nothing is lost."""
        before = {one: self.cluster.get("pod", f"flexfeed-source-{one}")["metadata"]["uid"] for one in (0, 1)}
        self.cluster.install(RELEASE, merged(self.values(), {"source": {"retention": 100000}}), verb="upgrade", waits=False)
        for one in (1, 0):
            wait(f"another source {one}", lambda one=one: self.cluster.ready(f"flexfeed-source-{one}", before[one]), 180)
        self._on_the_right_relay()
        self._all_there()

    STAGES = (installs, climbs, takes_over, upgrades)

    def _publishes(self):
        """The number of the one source that has the lease."""
        having = []
        for one in (0, 1):
            try:
                path = f"/api/v1/namespaces/{self.namespace}/pods/flexfeed-source-{one}:8090/proxy/metrics"
                if 'flexfeed_source_lease_held{channel="test"} 1' in run("kubectl", "get", "--request-timeout=5s", "--raw", path):
                    having.append(one)
            except Failed:
                # Not there yet, or not answering.
                continue
        if len(having) != 1:
            raise Failed(f"those that say that they publish: {having}")
        return Number(having[0])

    def _on_the_right_relay(self):
        def look():
            channel = self.receiver.wait_rung("amt", 5)
            wanted = f"{self.options.balancers[self._publishes()]}:2268"
            if channel["relay"] != wanted:
                raise Failed(f"its relay is {channel['relay']}, not {wanted}")
            return channel

        wait("the receiver on amt by the relay of the source that publishes", look, 120)

    def _certificate(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="flexfeed-certificate-"))
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
            "/CN=flexfeed source", "-addext", f"subjectAltName=DNS:{NAME}", "-keyout", folder / "key", "-out", folder / "cert")
        self.cluster.kubectl("create", "secret", "tls", "source-certificate", f"--cert={folder}/cert", f"--key={folder}/key")
        run("openssl", "rand", "-out", folder / "signing.key", "32")
        self.cluster.kubectl("create", "secret", "generic", "signing-key", f"--from-file={folder}/signing.key")
        say("a certificate and a signing key for both are in Secrets")


class Number(int):
    """A number that counts as found although it is 0."""

    def __bool__(self):
        return True
