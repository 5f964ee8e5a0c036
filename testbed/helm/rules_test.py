"""Tests of the chart: what pods may do, what is monitored and what is said. They need no cluster."""

import re
import unittest

import yaml
from chart import CHART, ROOT, SCENARIOS, find, given, notes, pods, rendered, scenario


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
                if path.name not in ("relay-daemonset.yaml", "receiver-daemonset.yaml", "relay-daemonset-sockets.yaml", "nodes-network.yaml"):
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
                self.assertFalse(spec["enableServiceLinks"], name)
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
        node = notes(*given("source.hostNetwork=true", "database.mode=sqlite", "console.httpLocal=true", "console.httpPort=9000"))
        self.assertIn("\n\n  kubectl -n feeds port-forward pod/flexfeed-source-0 9470:9000 ", node)
        self.assertIn("\n\n  kubectl -n feeds port-forward service/flexfeed-console 9470:80 ", said)
        self.assertIn("logs flexfeed-source-0 -c source", small)

    def test_traps_are_warned_about(self):
        for pairs, words in [
            ([], "publicAddress is not set: enrolment links"),
            (["source.existingConfigSecret=f"], "unless source.toml says"),
            (["console.ingress.enabled=true", "console.ingress.host=c.example"], "http://c.example, without TLS"),
            (["console.service.type=NodePort"], "without TLS"),
            (["console.publicUrl=https://c.example"], "console.trustedProxies is not set"),
            (["relay.mode=daemonset"], "relay.addresses is not set"),
            (["relay.mode=daemonset", "relay.addresses={a}"], "source.hostNetwork=true"),
            (["source.persistence.enabled=false"], "another certificate"),
            (["database.bundled.persistence.enabled=false"], "everything is lost"),
            (["database.mode=external", "database.url=postgres://u:p@h/d"], "database.existingSecret"),
            (["receiver.enabled=true", "receiver.existingSecret=l", "receiver.persistence.enabled=false"], "each new pod is a new receiver"),
            (["receiver.enabled=true", "receiver.existingSecret=l", "receiver.kind=DaemonSet"], "receiver.persistence.hostPath is not set"),
            (["receiver.enabled=true", "receiver.existingSecret=l", "receiver.hostNetwork=true", "receiver.httpPort=9"], "at TCP port 9 (receiver.httpLocal)"),
            (["relay.mode=daemonset"], "at TCP port 8091 (relay.httpLocal)"),
            (["source.hostNetwork=true"], "at TCP port 8090 (source.httpLocal); the relay at TCP port 8091"),
            (["source.resources=null"], "source.resources has no limits"),
        ]:
            with self.subTest(pairs):
                self.assertIn(words, notes(*given(*pairs)))
        # Where nobody else reaches them, there is nothing to warn of.
        local = ["source.hostNetwork=true", "source.httpLocal=true", "relay.httpLocal=true"]
        self.assertNotIn("on all addresses", notes(*given(*local)))
        self.assertNotIn("on all addresses", notes(*given(*local, "database.mode=sqlite", "console.httpLocal=true")))

    def test_the_receivers_page_is_where_the_notes_say(self):
        receiver = ["receiver.enabled=true", "receiver.existingSecret=l", "receiver.httpPort=9000"]
        for pairs, words in [
            ([], "http://flexfeed-receiver.feeds/ "),
            (["receiver.service.port=8080"], "http://flexfeed-receiver.feeds:8080/ "),
            (["receiver.service.enabled=false"], "port-forward statefulset/flexfeed-receiver 8080:9000"),
            (["receiver.kind=DaemonSet", "receiver.hostNetwork=true", "receiver.httpLocal=true"], "http://127.0.0.1:9000/ "),
        ]:
            with self.subTest(pairs):
                said = notes(*given(*receiver, *pairs))
                self.assertIn(words, said)
                self.assertEqual("http://flexfeed-receiver." in said, words.startswith("http://flexfeed"))


if __name__ == "__main__":
    unittest.main()
