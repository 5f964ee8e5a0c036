"""Tests of the chart: what pods may do, what is monitored, what is refused and what is said. They need no cluster."""

import json
import re
import unittest

import yaml
from chart import CHART, ROOT, SCENARIOS, find, given, notes, pods, refused, rendered, scenario


class Rights(unittest.TestCase):
    """What pods may do."""

    def test_all_but_capturing_relays_are_restricted(self):
        for path in SCENARIOS:
            for name, _, spec in pods(rendered("-f", path)):
                if path.name in ("relay-daemonset.yaml", "relay-only.yaml") and name.endswith("-relay"):
                    continue
                where = f"{path.name}: {name}"
                self.assertTrue(spec["securityContext"]["runAsNonRoot"], where)
                self.assertGreater(spec["securityContext"]["runAsUser"], 0, where)
                self.assertEqual(spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"}, where)
                for one in spec["containers"]:
                    self.assertEqual(
                        one["securityContext"],
                        {
                            "allowPrivilegeEscalation": False,
                            "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]},
                        },
                        where,
                    )
                uses_node = spec.get("hostNetwork") or any("hostPath" in one for one in spec.get("volumes", []))
                if path.name not in ("relay-daemonset.yaml", "receiver-daemonset.yaml", "relay-daemonset-sockets.yaml"):
                    self.assertFalse(uses_node, where)

    def test_a_capturing_relay_has_one_right(self):
        spec = find(scenario("relay-daemonset"), "DaemonSet", "flexfeed-relay")["spec"]["template"]["spec"]
        context = spec["containers"][0]["securityContext"]
        self.assertEqual(context["capabilities"], {"drop": ["ALL"], "add": ["NET_RAW"]})
        self.assertFalse(context["allowPrivilegeEscalation"])
        self.assertTrue(context["readOnlyRootFilesystem"])
        self.assertEqual(spec["nodeSelector"], {"flexfeed.org/relay": "true"})
        quiet = find(scenario("relay-daemonset-sockets"), "DaemonSet", "flexfeed-relay")["spec"]["template"]["spec"]
        self.assertNotIn("add", quiet["containers"][0]["securityContext"]["capabilities"])
        self.assertTrue(quiet["securityContext"]["runAsNonRoot"])

    def test_nobody_gets_a_token_or_variables_of_services(self):
        for path in SCENARIOS:
            objects = rendered("-f", path)
            accounts = {one["metadata"]["name"] for one in objects if one["kind"] == "ServiceAccount"}
            for name, _, spec in pods(objects):
                self.assertFalse(spec["automountServiceAccountToken"], name)
                self.assertEqual(spec["enableServiceLinks"], name.endswith("-test"), name)
                self.assertIn(spec["serviceAccountName"], accounts, name)

    def test_memory_is_bounded_and_cpu_is_not(self):
        for path in SCENARIOS:
            for name, _, spec in pods(rendered("-f", path)):
                for one in spec["containers"]:
                    resources = one["resources"]
                    self.assertIn("memory", resources["limits"], name)
                    self.assertNotIn("cpu", resources["limits"], name)
                    self.assertEqual(set(resources["requests"]), {"cpu", "memory"}, name)


class Monitoring(unittest.TestCase):
    """What Prometheus and Grafana get."""

    def test_alerts_and_dashboard_are_those_of_deploy(self):
        for ours, origin in (("alerts.yml", "prometheus/flexfeed.rules.yml"), ("dashboard.json", "grafana/flexfeed.json")):
            self.assertEqual(
                (CHART / "files" / ours).read_text(),
                (ROOT / "deploy" / origin).read_text(),
                f"cp deploy/{origin} helm/flexfeed/files/{ours}",
            )
        objects = scenario("everything")
        rule = find(objects, "PrometheusRule", "flexfeed-feeds")
        self.assertEqual(rule["spec"], yaml.safe_load((ROOT / "deploy/prometheus/flexfeed.rules.yml").read_text()))
        self.assertEqual(rule["metadata"]["labels"]["release"], "prometheus")
        board = find(objects, "ConfigMap", "flexfeed-feeds-dashboard")
        self.assertEqual(board["data"]["flexfeed.json"].strip(), (ROOT / "deploy/grafana/flexfeed.json").read_text().strip())
        self.assertEqual(board["metadata"]["labels"]["grafana_dashboard"], "1")

    def test_alerts_find_the_jobs_that_they_name(self):
        objects = scenario("everything")
        alerts = (ROOT / "deploy/prometheus/flexfeed.rules.yml").read_text()
        jobs = set()
        for monitor in (one for one in objects if one["kind"] == "ServiceMonitor"):
            chosen = monitor["spec"]["selector"]["matchLabels"]
            services = [
                one for one in objects
                if one["kind"] == "Service" and chosen.items() <= one["metadata"]["labels"].items()
            ]
            for end in monitor["spec"]["endpoints"]:
                names = [port["name"] for one in services for port in one["spec"]["ports"]]
                self.assertEqual(names.count(end["port"]), 1, f"{monitor['metadata']['name']} {end['port']}: {names}")
                jobs |= {one["replacement"] for one in end["relabelings"] if one["targetLabel"] == "job"}
        self.assertEqual(jobs, {f"flexfeed-{part}" for part in ("source", "relay", "console", "receiver")})
        # The chart has no gateways: they belong to programs that want multicast, wherever these are.
        self.assertLessEqual(set(re.findall(r'job="([^"]*)"', alerts)) - {"flexfeed-gateway"}, jobs)


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
        ]:
            with self.subTest(arguments):
                complaint = refused(*arguments)
                for word in words:
                    self.assertIn(word, complaint.replace("/", "/").replace(".", "/"))

    def test_values_that_do_not_go_together_are_named(self):
        several = ["source.replicas=2", "source.tls.existingSecret=c"]
        for pairs, words in [
            (["source.replicas=2", "relay.enabled=false"], ["source.tls.existingSecret"]),
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

    def test_every_value_has_a_place_in_the_schema_and_a_comment(self):
        schema = json.loads((CHART / "values.schema.json").read_text())
        values = yaml.safe_load((CHART / "values.yaml").read_text())

        def walk(value, shape, path):
            if "$ref" in shape:
                shape = schema["definitions"][shape["$ref"].rsplit("/", 1)[1]]
            known = shape.get("properties")
            if known is None or not isinstance(value, dict):
                return
            missing = set(known) - set(value) - {"global", "claims"}
            self.assertFalse(missing, f"{path}: in the schema and without a default: {missing}")
            self.assertFalse(shape["additionalProperties"], path)
            for key, inner in value.items():
                self.assertIn(key, known, path)
                walk(inner, known[key], f"{path}.{key}")

        # What users write into are no values of the chart's own.
        schema["definitions"]["resources"] = {}
        walk(values, schema, "")


class Notes(unittest.TestCase):
    """What is said after an install."""

    def test_next_steps_can_be_followed(self):
        said = notes("-f", str(CHART / "ci" / "default.yaml"))
        for line in (
            "kubectl -n feeds get service flexfeed-source",
            "to come to feeds.example.org:4433, and to relays at feeds.example.org:2268",
            "kubectl -n feeds exec flexfeed-source-0 -c source -- /usr/bin/flexfeed-source token create",
            "port-forward service/flexfeed-console 9470:80",
            "exec deployment/flexfeed-console -- /usr/bin/flexfeed-console setup-link",
            "helm -n feeds test flexfeed",
        ):
            self.assertIn(line, said)
        self.assertNotIn("WARNING", said)
        nodes = notes("-f", str(CHART / "ci" / "relay-only.yaml"))
        self.assertIn("kubectl label node NODE flexfeed.org/relay=true", nodes)
        small = notes("-f", str(CHART / "ci" / "sqlite.yaml"))
        self.assertIn("is at https://console.example.org", small)
        self.assertIn("logs flexfeed-source-0 -c source", small)

    def test_traps_are_warned_about(self):
        for pairs, words in [
            ([], "publicAddress is not set"),
            (["console.ingress.enabled=true", "console.ingress.host=c.example"], "http://c.example, without TLS"),
            (["console.service.type=NodePort"], "without TLS"),
            (["console.publicUrl=https://c.example"], "console.trustedProxies is not set"),
            (["relay.mode=daemonset"], "relay.addresses is not set"),
            (["relay.mode=daemonset", "relay.addresses={a}"], "source.hostNetwork=true"),
            (["source.persistence.enabled=false"], "another certificate"),
            (["database.bundled.persistence.enabled=false"], "everything is lost"),
            (["database.mode=external", "database.url=postgres://u:p@h/d"], "database.existingSecret"),
        ]:
            with self.subTest(pairs):
                self.assertIn(words, notes(*given(*pairs)))


if __name__ == "__main__":
    unittest.main()
