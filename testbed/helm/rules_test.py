"""Tests of the chart: what pods may do, what is monitored and what is said. They need no cluster."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import yaml
from chart import CHART, ROOT, SCENARIOS, find, given, notes, pods, rendered, scenario


class Rights(unittest.TestCase):
    """Privileges of the pods."""

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
    """Objects for Prometheus and Grafana."""

    def test_alerts_and_dashboard_are_those_of_deploy(self):
        for ours, origin in (("alerts.yml", "prometheus/flexfeed.rules.yml"), ("dashboard.json", "grafana/flexfeed.json")):
            self.assertEqual(
                (CHART / "files" / ours).read_text(),
                (ROOT / "deploy" / origin).read_text(),
                f"cp deploy/{origin} helm/flexfeed/files/{ours}",
            )
        objects = scenario("everything")
        rule = find(objects, "PrometheusRule", "flexfeed-feeds")
        *groups, gone = rule["spec"]["groups"]
        self.assertEqual({"groups": groups}, yaml.safe_load((ROOT / "deploy/prometheus/flexfeed.rules.yml").read_text()))
        self.assertEqual(gone["name"], "flexfeed-gone-flexfeed-feeds")
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


    def test_parts_that_are_gone_are_noticed(self):
        def gone(*arguments):
            groups = find(rendered(*arguments), "PrometheusRule", "flexfeed")["spec"]["groups"]
            return next((one for one in groups if one["name"] == "flexfeed-gone-flexfeed"), {"rules": []})

        def names(*arguments):
            return sorted(one["alert"] for one in gone(*arguments)["rules"])

        both = given("prometheusRule.enabled=true", "serviceMonitor.enabled=true")
        self.assertEqual(names(*both), ["FlexfeedConsoleGone", "FlexfeedRelayGone", "FlexfeedSourceGone"])
        self.assertEqual(names("--set", "prometheusRule.enabled=true"), [], "nothing gives those labels")
        self.assertEqual(names(*both, "-f", CHART / "ci" / "nodes-network.yaml"), [], "nothing of it can be read")
        self.assertEqual(names(*both, "-f", CHART / "ci" / "relay-only.yaml"), ["FlexfeedRelayGone"])
        self.assertEqual(names(*both, "-f", CHART / "ci" / "receiver-daemonset.yaml"), ["FlexfeedReceiverGone"])
        # They select by the labels of the ServiceMonitors: the job, and the Service that has the port.
        for scenario_here in ("default", "relay-only", "receiver-daemonset", "sqlite"):
            objects = rendered(*both, "-f", CHART / "ci" / f"{scenario_here}.yaml")
            given_here = set()
            for monitor in (one for one in objects if one["kind"] == "ServiceMonitor"):
                chosen = monitor["spec"]["selector"]["matchLabels"]
                for end in monitor["spec"]["endpoints"]:
                    for service in (one for one in objects if one["kind"] == "Service" and chosen.items() <= one["metadata"]["labels"].items()):
                        if end["port"] in [port["name"] for port in service["spec"]["ports"]]:
                            given_here.add((end["relabelings"][0]["replacement"], "feeds", service["metadata"]["name"]))
            rules = gone(*both, "-f", CHART / "ci" / f"{scenario_here}.yaml")["rules"]
            looked_for = {re.fullmatch(r'absent\(up\{job="(.*)", namespace="(.*)", service="(.*)"\} == 1\)', one["expr"]).groups() for one in rules}
            self.assertEqual(looked_for, given_here, scenario_here)

    @unittest.skipUnless(shutil.which("promtool") or os.environ.get("FLEXFEED_REQUIRE_PEERS"), "there is no promtool")
    def test_they_fire_when_they_should(self):
        rule = find(rendered(*given("prometheusRule.enabled=true", "serviceMonitor.enabled=true")), "PrometheusRule", "flexfeed")
        there = 'up{job="flexfeed-source", namespace="feeds", service="flexfeed-source-pods", instance="%s"}'
        # One there all the time; gone after 10 minutes; there and down, as each time another pod; that of another release only.
        lives = [
            ([there % "a:8090"], ["1x30"], []),
            ([there % "a:8090"], ["1x10 stale"], ["FlexfeedSourceGone"]),
            ([there % "a:8090", there % "b:8090"], ["0x9 stale", "_x10 0x20"], ["FlexfeedSourceDown", "FlexfeedSourceGone"]),
            ([(there % "a:8090").replace("flexfeed-source-pods", "other-source-pods")], ["1x30"], ["FlexfeedSourceGone"]),
        ]
        tests = []
        for series, values, wanted in lives:
            tests.append({
                "interval": "1m",
                "input_series": [{"series": one, "values": value} for one, value in zip(series, values, strict=True)],
                "promql_expr_test": [{
                    "expr": 'count by (alertname) (ALERTS{alertname=~"FlexfeedSource(Gone|Down)", alertstate="firing"})',
                    "eval_time": "25m",
                    "exp_samples": [{"labels": f'{{alertname="{one}"}}', "value": 1} for one in wanted],
                }],
            })  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            (place / "rules.yml").write_text(json.dumps(rule["spec"]))
            (place / "test.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}))
            done = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=place, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_runbooks_are_where_they_are_said_to_be(self):
        def links(*pairs):
            rule = find(rendered(*given("prometheusRule.enabled=true", "serviceMonitor.enabled=true", *pairs)), "PrometheusRule", "flexfeed")
            return {one["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for one in group["rules"]}

        pages = {(ROOT / "docs" / one.removeprefix("https://flexfeed.example/docs/").split("#")[0]) for one in links()}
        self.assertTrue(all(one.is_file() for one in pages), pages)
        heading = "### " + next(one for one in links() if "kubernetes.md" in one).split("#")[1].replace("-", " ").capitalize()
        self.assertIn(heading, (ROOT / "docs/kubernetes.md").read_text().splitlines())
        for given_here in ("https://wiki.example.org/flexfeed", "https://wiki.example.org/flexfeed/"):
            moved = {one.replace("https://flexfeed.example/docs/", "https://wiki.example.org/flexfeed/") for one in links()}
            self.assertEqual(links(f"prometheusRule.runbooks={given_here}"), moved)

    def test_who_cannot_be_found_is_not_looked_for(self):
        receiver = given("serviceMonitor.enabled=true", "receiver.enabled=true", "receiver.existingSecret=l", "receiver.service.enabled=false")
        for kind in ("DaemonSet", "StatefulSet"):
            objects = rendered(*receiver, "--set", f"receiver.kind={kind}")
            for monitor in (one for one in objects if one["kind"] == "ServiceMonitor"):
                chosen = monitor["spec"]["selector"]["matchLabels"].items()
                found = [one for one in objects if one["kind"] == "Service" and chosen <= one["metadata"]["labels"].items()]
                self.assertTrue(found, f"{kind}: {monitor['metadata']['name']} selects nothing")


class Notes(unittest.TestCase):
    """Notes after an install."""

    def test_next_steps_can_be_followed(self):
        said = notes("-f", str(CHART / "ci" / "default.yaml"))
        for line in (
            "kubectl -n feeds get service flexfeed-source",
            "They connect to feeds.example.org:4433, and to relays at feeds.example.org:2268",
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
            (["database.mode=sqlite", "source.hostNetwork=true"], "the console at TCP port 9470 (console.httpLocal)"),
            (
                ["receiver.enabled=true", "receiver.existingSecret=l", "receiver.service.enabled=false", "serviceMonitor.enabled=true"],
                "receiver.service.enabled=false: there is no Service",
            ),
        ]:
            with self.subTest(pairs):
                self.assertIn(words, notes(*given(*pairs)))
        # Without outside access there is nothing to warn about.
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
