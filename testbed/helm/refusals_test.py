"""Tests of the chart: which values are refused, and in what words. They need no cluster."""

import json
import unittest

import yaml
from chart import CHART, SCENARIOS, answered, find, given, refused, rendered


def said(values, path):
    """Whether a file of values says something of this one."""
    for key in path.split("."):
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True


class Refusals(unittest.TestCase):
    """Bad values are refused, in words that name them."""

    def test_the_schema_names_what_is_wrong(self):
        for arguments, words in [
            (["--set", "surce.enabled=true"], ["surce"]),
            (["--set", "source.replica=2"], ["source", "replica"]),
            (["--set", "source.replicas=0"], ["source/replicas", "minimum"]),
            (["--set-string", "source.enabled=yes"], ["source/enabled", "boolean"]),
            (["--set", "publicAddress=https://feeds.example.org"], ["publicAddress"]),
            (["--set", "publicAddress=feeds.example.org/path"], ["publicAddress"]),
            (["--set", "database.mode=mysql"], ["database/mode", "bundled"]),
            (["--set", "database.mode=external,database.url=mysql://h/d"], ["database/url"]),
            (["--set", "image.pullPolicy=Sometimes"], ["image/pullPolicy"]),
            (["--set", "source.service.type=Loadbalancer"], ["source/service/type"]),
            (["--set", "source.service.nodePort=70000"], ["source/service/nodePort"]),
            (["--set", "source.channels[0].name=a b"], ["source/channels/0/name"]),
            (["--set", "source.channels[0].name=a,source.channels[0].feeds[0].url=ftp://x"], ["feeds/0/url"]),
            (["--set", "source.channels[0].name=a,source.channels[0].feed[0].url=https://x"], ["feed"]),
            (["--set", "source.multicastTtl=300"], ["source/multicastTtl"]),
            (["--set", "source.tls.nextPin=sha256:short"], ["source/tls/nextPin"]),
            (["--set", "relay.mode=deamonset"], ["relay/mode", "daemonset"]),
            (["--set", "relay.udpPorts={}"], ["relay/udpPorts"]),
            (["--set", "receiver.link=https://x"], ["receiver/link"]),
            (["--set", "receiver.kind=Deployment"], ["receiver/kind", "StatefulSet"]),
            (["--set", "console.publicUrl=console.example.org"], ["console/publicUrl"]),
            (["--set", "console.trustedProxies={traefik}"], ["console/trustedProxies/0"]),
            (["--set", "source.persistence.size=ten"], ["source/persistence/size"]),
            (["--set", "log.format=xml"], ["log/format"]),
            (["--set", "image.tag=v1@sha256:aa"], ["image/tag"]),
            (["--set", "image.digests.source=sha256:aa"], ["image/digests/source", "sha256:"]),
            (["--set", "console.ingress.host=https://c.example"], ["console/ingress/host"]),
            (["--set", "console.httpRoute.hostnames={c.example/x}"], ["console/httpRoute/hostnames/0"]),
            (["--set", "relay.topologySpreadConstraints={}"], ["relay", "topologySpreadConstraints"]),
            (["--set", "source.settings.foo=1"], ["source/settings", "foo"]),
            (["--set", "relay.settings.max_gateway=1"], ["relay/settings", "max_gateway"]),
            (["--set", "console.settings.sessions=1"], ["console/settings", "sessions"]),
            (["--set", "receiver.settings.web_hook=1"], ["receiver/settings", "web_hook"]),
            (["--set", "source.settings.min-poll-interval=30s"], ["source/settings", "min-poll-interval"]),
        ]:
            with self.subTest(arguments):
                complaint = refused(*arguments)
                for word in words:
                    self.assertIn(word, complaint.replace("/", "/").replace(".", "/"))

    def test_values_that_do_not_go_together_are_named(self):
        several = ["source.replicas=2", "source.tls.existingSecret=c", "source.signingKey.existingSecret=k"]
        for pairs, words in [
            (["source.replicas=2", "relay.enabled=false"], ["source.tls.existingSecret", "source.signingKey.existingSecret"]),
            ([*several, "database.mode=sqlite"], ["one source"]),
            (several, ["relay.addresses"]),
            ([*several, "relay.addresses={a}"], ["relay.addresses"]),
            (["database.mode=external"], ["database.existingSecret"]),
            (["database.mode=external", "database.url=postgres://h/d", "database.existingSecret=x"], ["leave out"]),
            (["database.mode=sqlite", "source.enabled=false"], ["console.enabled"]),
            (["database.mode=sqlite", "source.persistence.enabled=false"], ["source.persistence.enabled"]),
            (["receiver.enabled=true"], ["receiver.existingSecret"]),
            (["console.ingress.enabled=true"], ["console.ingress.host"]),
            (["console.httpRoute.enabled=true"], ["console.httpRoute.parentRefs"]),
            (["source.enabled=false", "console.enabled=false"], ["nothing is enabled"]),
            (["publicAddress=a.example", "source.service.type=NodePort"], ["source.service.nodePort"]),
            (
                ["publicAddress=a.example:30433", "source.service.type=NodePort", "source.service.nodePort=30433"],
                ["source.service.relayNodePort"],
            ),
        ]:
            with self.subTest(pairs):
                complaint = refused(*given(*pairs))
                for word in words:
                    self.assertIn(word, complaint)

    def test_values_that_would_do_nothing_are_named(self):
        receiver = ["receiver.enabled=true", "receiver.existingSecret=l"]
        own_file = ["source.existingConfigSecret=f"]
        several = ["source.replicas=2", "source.tls.existingSecret=c", "source.signingKey.existingSecret=k"]
        # (values, what is named, what to do about it)
        for pairs, named, advice in [
            (["database.url=postgres://h/d"], "database.url", "database.mode=external"),
            (["database.mode=sqlite", "database.existingSecret=s"], "database.existingSecret", "database.mode"),
            (["database.mode=sqlite", "database.bundled.password=p"], "database.bundled.password", "leave it out"),
            (["database.existingSecret=s", "database.bundled.password=p"], "database.bundled.password", "leave one"),
            (["database.urlKey=password"], "database.passwordKey", "database.urlKey"),
            (["database.mode=sqlite", "console.settings.session_time=8h"], "console.settings", "database.mode"),
            (["database.mode=sqlite", "console.replicas=3"], "console.replicas", "database.mode"),
            (["database.mode=sqlite", "console.podLabels.a=b"], "console.podLabels", "source.podLabels"),
            ([*receiver, "receiver.persistence.hostPath=/x"], "receiver.persistence.hostPath", "receiver.kind=DaemonSet"),
            ([*receiver, "receiver.kind=DaemonSet", "receiver.persistence.storageClass=x"], "storageClass", "hostPath"),
            ([*receiver, "receiver.httpLocal=true"], "receiver.httpLocal", "receiver.hostNetwork"),
            (["receiver.link=flexfeed://T@h"], "receiver.link", "receiver.enabled=true"),
            (["console.enabled=false", "console.ingress.enabled=true"], "console.ingress.enabled", "console.enabled"),
            (["console.enabled=false", "console.httpRoute.enabled=true"], "console.httpRoute.enabled", "console.enabled"),
            (["source.service.relayPort=4433"], "source.service.relayPort", "source.service.port"),
            (
                ["source.service.type=NodePort", "source.service.nodePort=30000", "source.service.relayNodePort=30000"],
                "source.service.relayNodePort",
                "source.service.nodePort",
            ),
            (["source.service.type=ClusterIP", "source.service.nodePort=30000"], "source.service.nodePort", "NodePort"),
            (["relay.enabled=false", "source.service.relayNodePort=30000"], "source.service.relayNodePort", "leave it out"),
            ([*several, "relay.addresses={a,b}", "source.service.nodePort=30000"], "source.service.nodePort", "NodePort"),
            (["source.service.type=NodePort", "source.service.loadBalancerIPs={192.0.2.1}"], "loadBalancerIPs", "LoadBalancer"),
            (["source.service.loadBalancerIPs={192.0.2.1,192.0.2.2}"], "loadBalancerIPs", "sources (1)"),
            (["source.channels[0].name=a", "source.channels[1].name=a"], "source.channels: a", "one place"),
            (["source.httpLocal=true"], "source.httpLocal", "source.hostNetwork"),
            (["source.httpPort=8091"], "source.httpPort", "relay.httpPort"),
            ([*own_file, "source.contact=mailto:a@b"], "source.contact", "source.toml"),
            ([*own_file, "source.retention=1"], "source.retention", "source.toml"),
            ([*own_file, "source.retentionAge=1d"], "source.retentionAge", "source.toml"),
            ([*own_file, "source.settings.rate=1M"], "source.settings", "source.toml"),
            ([*own_file, *several, "relay.addresses={a,b}"], "source.existingConfigSecret", "relay.mode=daemonset"),
            (["relay.podLabels.a=b"], "relay.podLabels", "relay.mode=daemonset"),
            (["relay.nativeInterface=eth1"], "relay.nativeInterface", "relay.mode=daemonset"),
            (["relay.httpLocal=true"], "relay.httpLocal", "source.hostNetwork"),
            (["relay.enabled=false", "relay.addresses={a}"], "relay.addresses", "source.settings.amt_relay"),
            (["relay.addresses={a,b}"], "relay.addresses", "source.settings.amt_relay"),
            (["relay.addresses={a}", "source.settings.amt_relay=a=127.0.0.1:2268"], "relay.addresses", "source.settings.amt_relay"),
            (["relay.udpPorts={5000}"], "relay.udpPorts", "name port 4434"),
            (["source.channels[0].name=a", "source.channels[0].groups={232.1.1.1:4434,232.1.1.1:5000}"], "relay.udpPorts", "name port 5000"),
            (["relay.mode=daemonset", "relay.capture=false", "relay.udpPorts={5000}"], "relay.udpPorts", "name port 4434"),
            ([*several, "source.service.type=NodePort", "source.service.externalTrafficPolicy=Cluster"], "source.service.externalTrafficPolicy", "Local"),
            (["database.caKey=ca.crt", "database.existingSecret=s"], "database.caKey", "database.mode external"),
            (["database.mode=external", "database.url=postgres://h/d", "database.caKey=ca.crt"], "database.caKey", "database.existingSecret"),
            (["database.mode=external", "database.existingSecret=s", "database.caKey=DATABASE_URL"], "database.caKey", "database.urlKey"),
            (["console.httpLocal=true"], "console.httpLocal", "source.hostNetwork"),
            (["console.httpLocal=true", "database.mode=sqlite"], "console.httpLocal", "source.hostNetwork"),
            (
                ["console.httpLocal=true", "database.mode=sqlite", "source.hostNetwork=true", "console.ingress.enabled=true", "console.ingress.host=a"],
                "console.ingress.enabled",
                "console.httpLocal",
            ),
            (["database.mode=sqlite", "console.httpPort=8090"], "source.httpPort", "console.httpPort"),
            (["image.tag=v1", *(f"image.digests.{one}=sha256:{'0' * 64}" for one in ("source", "relay", "console"))], "image.tag", "other digests"),
            ([*several, "source.service.type=NodePort", "relay.addresses={a}"], "relay.addresses", "each one"),
            (
                ["source.enabled=false", "console.enabled=false", "relay.mode=daemonset", "relay.addresses={a}"],
                "relay.addresses",
                "amt_relay",
            ),
            (["serviceAccount.create=false", "serviceAccount.annotations.a=b"], "serviceAccount.annotations", "your own"),
            (["publicAddress=a.example:65536"], "a.example:65536", "65535"),
        ]:
            with self.subTest(pairs):
                complaint = refused(*given(*pairs))
                line = next((one for one in complaint.splitlines() if one.startswith("- ") and named in one.split(": ")[0]), None)
                line = line or next((one for one in complaint.splitlines() if one.startswith(f"- {named}")), None)
                self.assertIsNotNone(line, f"{named} is not named: {complaint}")
                self.assertIn(advice, line)

    def test_labels_that_select_pods_are_the_charts_own(self):
        for path in ("commonLabels", "source.podLabels", "receiver.podLabels", "database.bundled.podLabels", "serviceMonitor.labels"):
            for key in ("name", "instance", "component"):
                complaint = refused("--set", f"{path}.app\\.kubernetes\\.io/{key}=x")
                self.assertIn(f"{path}: app.kubernetes.io/{key} is the chart's own", complaint)
        self.assertIn("helm.sh/chart", refused("--set", "commonLabels.helm\\.sh/chart=x"))
        # One key from two sides is there once, and the nearer one counts.
        objects = rendered(*given("commonLabels.tier=all", "source.podLabels.tier=front"))
        labels = find(objects, "StatefulSet", "flexfeed-source")["spec"]["template"]["metadata"]["labels"]
        self.assertEqual(labels["tier"], "front")

    def test_names_of_releases_make_names_of_services(self):
        for one in rendered(release="my.rel"):
            self.assertRegex(one["metadata"]["name"], "^my-rel-flexfeed[-a-z]*$")
        complaint = refused(release="1rel")
        self.assertIn("begin with a letter", complaint)
        self.assertIn("fullnameOverride", complaint)
        rendered("--set", "fullnameOverride=feeds", release="1rel")

    def test_kubernetes_that_is_too_old_is_refused(self):
        self.assertIn("1.25.0", refused(kubernetes="1.24.9"))
        rendered(kubernetes="1.25.3-gke.100")

    def test_another_password_than_the_databases_is_refused(self):
        def password(found, *pairs, **others):
            return answered('{{ include "flexfeed.bundledPassword" (list . %s) }}' % found, *given(*pairs), **others)

        kept = '(dict "metadata" (dict "annotations" (dict "helm.sh/resource-policy" "keep")) "data" (dict "password" ("old" | b64enc)))'
        self.assertEqual(password(kept), "old")
        self.assertEqual(password(kept, "database.bundled.password=old"), "old")
        complaint = password(kept, "database.bundled.password=new", expect=1)
        self.assertIn("database.bundled.password", complaint)
        self.assertIn("Secret flexfeed-database", complaint)
        self.assertIn("docs/kubernetes.md", complaint)
        self.assertIn("no key pass", password(kept, "database.passwordKey=pass", expect=1))
        self.assertEqual(password("dict", "database.bundled.password=new"), "new")
        self.assertRegex(password("dict"), "^[A-Za-z0-9]{40}$")
        # A database that was external before has a Secret of that name without a password.
        self.assertRegex(password('(dict "data" (dict "DATABASE_URL" "eA=="))'), "^[A-Za-z0-9]{40}$")

    def test_null_is_refused_where_a_value_is_needed(self):
        values = yaml.safe_load((CHART / "values.yaml").read_text())
        schema = json.loads((CHART / "values.schema.json").read_text())
        leaves, parts, free = set(), set(), []

        def walk(value, shape, path):
            for key, inner in value.items():
                below = shape["properties"][key]
                here = f"{path}{key}"
                if "properties" in below and key != "settings":
                    parts.add(here)
                    walk(inner, below, f"{here}.")
                elif here not in ("relay.udpPorts",) and isinstance(inner, (list, dict)) or inner in ("", None) or here == "image.prefix":
                    free.append(here)
                else:
                    leaves.add(here)

        walk(values, schema, "")
        listed = set(answered('{{ include "flexfeed.neededValues" . }}').split())
        self.assertEqual(listed, leaves | parts)
        # Parts by their depth: one that is gone takes the others with it.
        for group in (leaves, *({one for one in parts if one.count(".") == depth} for depth in range(3))):
            complaint = refused(*given(*(f"{one}=null" for one in group)))
            for one in group:
                self.assertIn(f"- {one}: null", complaint)
        # All others can be taken away, in every scenario.
        for path in SCENARIOS:
            given_here = yaml.safe_load(path.read_text())
            gone = [one for one in free if not said(given_here, one)]
            made = json.dumps(rendered("-f", path, *given(*(f"{one}=null" for one in gone))))
            for word in ("<nil>", "<no value>", "%!"):
                self.assertNotIn(word, made, path.name)

    def test_every_value_has_a_place_in_the_schema_and_a_comment(self):
        schema = json.loads((CHART / "values.schema.json").read_text())
        values = yaml.safe_load((CHART / "values.yaml").read_text())

        def walk(value, shape, path):
            if "$ref" in shape:
                shape = schema["definitions"][shape["$ref"].rsplit("/", 1)[1]]
            known = shape.get("properties")
            if known is None or not isinstance(value, dict) or path.endswith(".settings"):
                return
            missing = set(known) - set(value) - {"global", "claims"}
            self.assertFalse(missing, f"{path}: in the schema and without a default: {missing}")
            self.assertFalse(shape["additionalProperties"], path)
            for key, inner in value.items():
                self.assertIn(key, known, path)
                walk(inner, known[key], f"{path}.{key}")

        # Free-form maps of users are not values of the chart.
        schema["definitions"]["resources"] = {}
        walk(values, schema, "")


if __name__ == "__main__":
    unittest.main()
