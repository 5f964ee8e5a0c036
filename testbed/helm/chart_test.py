"""Tests of the chart: what it makes of values, and what it refuses. They need no cluster."""

import re
import unittest

import yaml
from chart import (
    CHART,
    ROOT,
    SCENARIOS,
    container,
    find,
    given,
    kinds,
    pods,
    rendered,
    scenario,
    variables,
)

PIN = "sha256:" + "A" * 43


class Parts(unittest.TestCase):
    """Objects of the chart."""

    def test_by_default_there_is_all_of_an_installation(self):
        self.assertEqual(
            kinds(scenario("default")),
            [
                "Deployment/flexfeed-console",
                "Pod/flexfeed-test",
                "PodDisruptionBudget/flexfeed-console",
                "PodDisruptionBudget/flexfeed-source",
                "Secret/flexfeed-database",
                "Secret/flexfeed-source-config",
                "Service/flexfeed-console",
                "Service/flexfeed-postgres",
                "Service/flexfeed-source",
                "Service/flexfeed-source-pods",
                "ServiceAccount/flexfeed",
                "StatefulSet/flexfeed-postgres",
                "StatefulSet/flexfeed-source",
            ],
        )

    def test_with_sqlite_one_pod_is_everything(self):
        objects = scenario("sqlite")
        workloads = [one for one in kinds(objects) if one.split("/")[0] in ("StatefulSet", "Deployment", "DaemonSet")]
        self.assertEqual(workloads, ["StatefulSet/flexfeed-source"])
        source = container(find(objects, "StatefulSet", "flexfeed-source"), "source")
        seen = variables(source)
        self.assertEqual(seen["DATABASE_URL"], "sqlite:///data/flexfeed.db")
        self.assertEqual(seen["FLEXFEED_CONSOLE"], "0.0.0.0:9470")
        self.assertEqual(seen["FLEXFEED_CONSOLE_PUBLIC_URL"], "https://console.example.org")
        self.assertEqual(seen["FLEXFEED_CONSOLE_TRUSTED_PROXY"], "10.0.0.0/8")
        self.assertNotIn("DATABASE_URL_FILE", seen)
        service = find(objects, "Service", "flexfeed-console")["spec"]
        self.assertEqual(service["selector"]["app.kubernetes.io/component"], "source")
        self.assertIn(service["ports"][0]["targetPort"], [port["name"] for port in source["ports"]])

    def test_the_line_of_the_console_installs_a_receiver_and_nothing_else(self):
        link = f"flexfeed://TOKEN@feeds.example.org:4433?pin={PIN}&pin={PIN}&ch=lore&ch=news"
        line = (ROOT / "crates/console/src/api/enrolments.rs").read_text()
        for part in ("helm install flexfeed-receiver ./helm/flexfeed --set source.enabled=false",
                     "--set relay.enabled=false --set console.enabled=false --set receiver.enabled=true",
                     "--set-string receiver.link='{link}'"):
            self.assertIn(part, line, "the console prints another line than this test tries")
        objects = rendered(
            *given("source.enabled=false", "relay.enabled=false", "console.enabled=false", "receiver.enabled=true"),
            "--set-string",
            f"receiver.link={link}",
            release="flexfeed-receiver",
        )
        self.assertEqual(
            kinds(objects),
            [
                "Pod/flexfeed-receiver-test",
                "Secret/flexfeed-receiver-receiver",
                "Service/flexfeed-receiver-receiver",
                "ServiceAccount/flexfeed-receiver",
                "StatefulSet/flexfeed-receiver-receiver",
            ],
        )
        self.assertEqual(find(objects, "Secret", "flexfeed-receiver-receiver")["stringData"], {"link": link})

    def test_a_receiver_keeps_what_it_is(self):
        one = find(scenario("receiver"), "StatefulSet", "flexfeed-receiver")["spec"]
        self.assertEqual(one["replicas"], 1)
        self.assertEqual([claim["metadata"]["name"] for claim in one["volumeClaimTemplates"]], ["data"])
        each = find(scenario("receiver-daemonset"), "DaemonSet", "flexfeed-receiver")
        spec = each["spec"]["template"]["spec"]
        self.assertEqual(
            next(volume for volume in spec["volumes"] if volume["name"] == "data")["hostPath"]["path"],
            "/var/lib/flexfeed-receiver",
        )
        self.assertTrue(spec["hostNetwork"])
        seen = variables(container(each, "receiver"))
        self.assertEqual(seen["FLEXFEED_NAME"], "edge-$(WHERE)")
        self.assertEqual(seen["FLEXFEED_WEBHOOK"], "https://example.org/hook")
        self.assertEqual(seen["FLEXFEED_WEBHOOK_SECRET_FILE"], "/etc/flexfeed/files/webhook-secret")

    def test_relays_are_possible_without_a_source(self):
        self.assertEqual(
            kinds(scenario("relay-only")),
            ["DaemonSet/flexfeed-relay", "Pod/flexfeed-test", "Service/flexfeed-relay", "ServiceAccount/flexfeed"],
        )

    def test_names_follow_the_release(self):
        names = {one["metadata"]["name"] for one in rendered(release="prod")}
        self.assertTrue(all(name.startswith("prod-flexfeed") for name in names), names)
        for one in rendered("-f", CHART / "ci" / "everything.yaml", release="a" * 53):
            limit = 52 if one["kind"] in ("StatefulSet", "DaemonSet", "Deployment") else 63
            self.assertLessEqual(len(one["metadata"]["name"]), limit, "labels with a pod's hash have at most 63")

    def test_images_follow_registry_prefix_and_tag(self):
        def images(objects):
            return {one["image"] for _, _, spec in pods(objects) for one in spec["containers"]}

        version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
        self.assertEqual(
            images(scenario("default")),
            {f"flexfeed/source:{version}", f"flexfeed/relay:{version}", f"flexfeed/console:{version}", "postgres:15"},
        )
        self.assertIn("registry.example.org/team/flexfeed/receiver:1.2.3", images(scenario("everything")))
        digest = "sha256:" + "0" * 63
        self.assertEqual(
            images(scenario("existing-config")),
            {f"flexfeed/source@{digest}1", f"flexfeed/relay:{version}", f"flexfeed/console@{digest}2", "postgres:15"},
        )


class Reach(unittest.TestCase):
    """Services and their reachability."""

    def test_all_services_lead_to_ports_that_are_there(self):
        for path in SCENARIOS:
            with self.subTest(path.name):
                objects = rendered("-f", path)
                for service in (one for one in objects if one["kind"] == "Service"):
                    name = service["metadata"]["name"]
                    selector = dict(service["spec"]["selector"])
                    selector.pop("statefulset.kubernetes.io/pod-name", None)
                    found = [spec for _, labels, spec in pods(objects) if selector.items() <= labels.items()]
                    self.assertEqual(len(found), 1, f"Service {name} selects {len(found)} kinds of pods")
                    ports = {
                        (port["name"], port["protocol"]) for one in found[0]["containers"] for port in one.get("ports", [])
                    }
                    for port in service["spec"].get("ports", []):
                        self.assertIn((port["targetPort"], port["protocol"]), ports, name)

    def test_ports_of_pages_follow_the_values(self):
        objects = rendered(
            *given("source.httpPort=9001", "relay.httpPort=9002", "receiver.httpPort=9003", "receiver.enabled=true"),
            *given("receiver.existingSecret=l", "console.httpPort=9004"),
        )
        for kind, name, one, variable, port in (
            ("StatefulSet", "flexfeed-source", "source", "FLEXFEED_HTTP", "0.0.0.0:9001"),
            ("StatefulSet", "flexfeed-source", "relay", "FLEXFEED_RELAY_HTTP", ":9002"),
            ("StatefulSet", "flexfeed-receiver", "receiver", "FLEXFEED_HTTP", ":9003"),
            ("Deployment", "flexfeed-console", "console", "FLEXFEED_CONSOLE_LISTEN", ":9004"),
        ):
            holder = container(find(objects, kind, name), one)
            self.assertEqual(variables(holder)[variable], port)
            self.assertIn(int(port.split(":")[1]), [entry["containerPort"] for entry in holder["ports"]])
        ports = [entry["port"] for entry in find(objects, "Service", "flexfeed-source-pods")["spec"]["ports"]]
        self.assertEqual(ports, [9001, 9002])
        inside = container(find(scenario("sqlite", "--set", "console.httpPort=9004"), "StatefulSet", "flexfeed-source"), "source")
        self.assertEqual(variables(inside)["FLEXFEED_CONSOLE"], "0.0.0.0:9004")
        self.assertIn({"name": "console", "containerPort": 9004, "protocol": "TCP"}, inside["ports"])
        nodes = rendered("-f", CHART / "ci" / "relay-daemonset.yaml", "--set", "relay.httpPort=9002")
        relay = container(find(nodes, "DaemonSet", "flexfeed-relay"), "relay")
        self.assertEqual(relay["ports"][1], {"name": "relay-http", "containerPort": 9002, "hostPort": 9002, "protocol": "TCP"})
        self.assertEqual(find(nodes, "Service", "flexfeed-relay")["spec"]["ports"][0]["port"], 9002)

    def test_what_answers_its_own_node_only_has_no_service(self):
        objects = scenario("nodes-network")
        found = {}
        for _, _, spec in pods(objects):
            for one in spec["containers"]:
                found[one["name"]] = variables(one)
                for probe in ("livenessProbe", "readinessProbe"):
                    self.assertEqual(one[probe]["httpGet"]["host"], "127.0.0.1")
        self.assertEqual(found["source"]["FLEXFEED_HTTP"], "127.0.0.1:18090")
        self.assertEqual(found["relay"]["FLEXFEED_RELAY_HTTP"], "127.0.0.1:18091")
        self.assertEqual(found["receiver"]["FLEXFEED_HTTP"], "127.0.0.1:18080")
        self.assertEqual(found["source"]["FLEXFEED_CONSOLE"], "127.0.0.1:19470")
        left = [one for one in kinds(objects) if one.startswith(("Service/", "ServiceMonitor/"))]
        self.assertEqual(left, ["Service/flexfeed-source"], "what receivers reach by UDP")
        nodes = rendered("-f", CHART / "ci" / "relay-daemonset.yaml", "--set", "relay.httpLocal=true")
        self.assertNotIn("Service/flexfeed-relay", kinds(nodes))
        for path in SCENARIOS:
            if path.name != "nodes-network.yaml":
                for _, _, spec in pods(rendered("-f", path)):
                    for one in spec["containers"]:
                        self.assertNotIn("host", one.get("readinessProbe", {}).get("httpGet", {}), path.name)

    def test_services_stay_of_their_kind_whatever_else_changes(self):
        # Kubernetes refuses to take a Service's address away, and gives one that was made without one none later.
        node = ["source.hostNetwork=true", "receiver.enabled=true", "receiver.existingSecret=l", "receiver.hostNetwork=true"]
        local = ["source.httpLocal=true", "relay.httpLocal=true", "receiver.httpLocal=true"]
        releases = [rendered("-f", path) for path in SCENARIOS]
        releases += [rendered(*given(*node)), rendered(*given(*node, *local)), rendered(*given(*node, "receiver.service.enabled=false"))]
        for objects in releases:
            for service in (one for one in objects if one["kind"] == "Service"):
                self.assertNotIn("clusterIP", service["spec"], service["metadata"]["name"])
                self.assertTrue(service["spec"]["ports"], service["metadata"]["name"])
        for name, kind in (("flexfeed-source", "StatefulSet"), ("flexfeed-receiver", "StatefulSet")):
            fixed = {find(objects, kind, name)["spec"]["serviceName"] for objects in releases[len(SCENARIOS):]}
            self.assertEqual(len(fixed), 1, f"{name}: it cannot change either: {fixed}")

    def test_services_of_many_pods_lead_to_those_that_answer(self):
        def asked(objects, kind, name, part):
            return container(find(objects, kind, name), part)["readinessProbe"]["httpGet"]["path"]

        # An address counts before its image is there and while it ends, unless readiness counts; and pages are there without the database, files without the source.
        apart = scenario("external-database")
        self.assertFalse(find(apart, "Service", "flexfeed-console")["spec"].get("publishNotReadyAddresses", False))
        self.assertEqual(asked(apart, "Deployment", "flexfeed-console", "console"), "/healthz")
        each = scenario("receiver-daemonset")
        self.assertFalse(find(each, "Service", "flexfeed-receiver")["spec"].get("publishNotReadyAddresses", False))
        self.assertEqual(asked(each, "DaemonSet", "flexfeed-receiver", "receiver"), "/healthz")
        # The only pod answers whatever it counts as.
        self.assertTrue(find(scenario("sqlite"), "Service", "flexfeed-console")["spec"]["publishNotReadyAddresses"])
        one = scenario("receiver")
        self.assertTrue(find(one, "Service", "flexfeed-receiver")["spec"]["publishNotReadyAddresses"])
        self.assertEqual(asked(one, "StatefulSet", "flexfeed-receiver", "receiver"), "/readyz")

    def test_receivers_keep_their_addresses_and_a_source_without_database(self):
        service = find(scenario("default"), "Service", "flexfeed-source")["spec"]
        self.assertEqual(service["type"], "LoadBalancer")
        self.assertEqual(service["externalTrafficPolicy"], "Local")
        self.assertTrue(service["publishNotReadyAddresses"])
        self.assertEqual({(port["port"], port["protocol"]) for port in service["ports"]}, {(4433, "UDP"), (2268, "UDP")})
        ports = find(scenario("nodeport"), "Service", "flexfeed-source")["spec"]["ports"]
        self.assertEqual([port["nodePort"] for port in ports], [30433, 30268])
        inside = find(rendered("--set", "source.service.type=ClusterIP"), "Service", "flexfeed-source")["spec"]
        self.assertNotIn("externalTrafficPolicy", inside)

    def test_each_standby_has_a_service_of_its_own(self):
        objects = scenario("standby")
        for number, name, address in ((0, "flexfeed-source", "192.0.2.1"), (1, "flexfeed-source-1", "192.0.2.2")):
            spec = find(objects, "Service", name)["spec"]
            self.assertEqual(spec["selector"]["statefulset.kubernetes.io/pod-name"], f"flexfeed-source-{number}")
            self.assertEqual(spec["loadBalancerIP"], address)
        by_node = [one for one in kinds(scenario("standby-nodeport")) if one.startswith("Service/flexfeed-source")]
        self.assertEqual(by_node, ["Service/flexfeed-source", "Service/flexfeed-source-pods"])
        spread = find(scenario("standby-nodeport"), "StatefulSet", "flexfeed-source")["spec"]["template"]["spec"]
        self.assertIn("requiredDuringSchedulingIgnoredDuringExecution", spread["affinity"]["podAntiAffinity"])

    def test_a_standby_counts_as_ready(self):
        def probed(name):
            return container(find(scenario(name), "StatefulSet", "flexfeed-source"), "source")["readinessProbe"]["httpGet"]

        self.assertEqual(probed("default")["path"], "/readyz")
        self.assertEqual(probed("standby")["path"], "/readyz?standby=ok")

    def test_every_program_is_probed(self):
        for path in SCENARIOS:
            for name, _, spec in pods(rendered("-f", path)):
                if name.endswith("-test"):
                    continue
                for one in spec["containers"]:
                    for probe in ("livenessProbe", "readinessProbe"):
                        self.assertIn(probe, one, f"{path.name}: {name}/{one['name']}")
                        asked = one[probe].get("httpGet")
                        if asked:
                            self.assertIn(asked["port"], [port["name"] for port in one["ports"]])

    def test_helm_test_asks_every_part(self):
        for path in SCENARIOS:
            objects = rendered("-f", path)
            asked = [one for one in objects if one["kind"] == "Pod"]
            services = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "Service"}
            # Those that answer their own node only cannot be asked from elsewhere.
            programs = {
                one["name"] for name, _, spec in pods(objects) if not name.endswith("-test") for one in spec["containers"]
                if "host" not in one["readinessProbe"].get("httpGet", {})
            }
            self.assertEqual({one["name"] for pod in asked for one in pod["spec"]["containers"]}, programs - {"postgres"}, path.name)
            for pod in asked:
                # Helm does not wait for pods of a DaemonSet: retry, within a limit.
                self.assertEqual((pod["spec"]["restartPolicy"], pod["spec"]["activeDeadlineSeconds"]), ("OnFailure", 90), path.name)
            for one in (one for pod in asked for one in pod["spec"]["containers"]):
                self.assertEqual(one["command"][-2], "--at", "only this takes a Service's name")
                name, port = re.fullmatch(r"([-a-z0-9]+):(\d+)", one["command"][-1]).groups()
                self.assertIn(int(port), [entry["port"] for entry in services[name]["ports"]])

    def test_the_console_is_found_by_ingress_and_route(self):
        ingress = find(scenario("sqlite"), "Ingress", "flexfeed-console")["spec"]
        self.assertEqual(ingress["tls"], [{"hosts": ["console.example.org"], "secretName": "console-tls"}])
        backend = ingress["rules"][0]["http"]["paths"][0]["backend"]["service"]
        self.assertEqual(backend, {"name": "flexfeed-console", "port": {"name": "console"}})
        route = find(scenario("external-database"), "HTTPRoute", "flexfeed-console")["spec"]
        self.assertEqual(route["parentRefs"], [{"name": "public", "namespace": "gateways"}])
        self.assertEqual(route["rules"][0]["backendRefs"], [{"name": "flexfeed-console", "port": 80}])

    def test_policies_let_in_what_is_there_to_be_reached(self):
        objects = scenario("everything")
        policies = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "NetworkPolicy"}
        prefix = "flexfeed-feeds-"
        self.assertEqual(set(policies), {prefix + part for part in ("source", "console", "postgres", "receiver")})
        ports = [port["port"] for rule in policies[prefix + "source"]["ingress"] for port in rule["ports"]]
        self.assertEqual(ports, ["quic", "amt", "http", "relay-http"])
        clients = policies[prefix + "postgres"]["ingress"][0]["from"]
        self.assertEqual(
            [one["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for one in clients], ["source", "console", "backup"]
        )
        self.assertEqual(policies[prefix + "postgres"]["egress"], [])
        named = '[{"podSelector":{"matchLabels":{"app":"%s"}}}]'
        only = rendered(
            "--set", "networkPolicy.enabled=true",
            "--set-json", "networkPolicy.consoleFrom=" + named % "proxy",
            "--set-json", "networkPolicy.monitoringFrom=" + named % "prometheus",
        )  # fmt: skip
        console = find(only, "NetworkPolicy", "flexfeed-console")["spec"]["ingress"][0]["from"]
        def who(peers):
            return [one["podSelector"]["matchLabels"].get("app", one["podSelector"]["matchLabels"].get("app.kubernetes.io/component")) for one in peers]

        # `helm test` asks by a pod of its own, which is not listed.
        self.assertEqual(who(console), ["proxy", "prometheus", "test"])
        pages = find(only, "NetworkPolicy", "flexfeed-source")["spec"]["ingress"][1]
        self.assertEqual((who(pages["from"]), pages["ports"][0]["port"]), (["prometheus", "test"], "http"))
        test = next(labels for name, labels, _ in pods(only) if name == "flexfeed-test")
        self.assertLessEqual(console[-1]["podSelector"]["matchLabels"].items(), test.items())
        # A receiver's metrics are where its feeds are.
        readers = policies[prefix + "receiver"]["ingress"][0]["from"]
        monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        self.assertEqual(readers, [{"namespaceSelector": {}}, monitoring])
        few = rendered(
            "-f", CHART / "ci" / "everything.yaml", "--set-json", "networkPolicy.receiverFrom=" + named % "reader"
        )
        readers = find(few, "NetworkPolicy", "flexfeed-feeds-receiver")["spec"]["ingress"][0]["from"]
        self.assertEqual((who([readers[0], readers[2]]), readers[1]), (["reader", "test"], monitoring))
        # Feeds and hooks inside of the cluster are not everywhere found by their addresses.
        for part in ("source", "console", "receiver"):
            feeds = next(rule for rule in policies[prefix + part]["egress"] if {"port": 443, "protocol": "TCP"} in rule["ports"])
            self.assertIn({"namespaceSelector": {}}, feeds["to"], part)
            self.assertIn({"ipBlock": {"cidr": "::/0"}}, feeds["to"], part)
        for name, spec in policies.items():
            chosen = spec["podSelector"]["matchLabels"]
            self.assertEqual(len([1 for _, labels, _ in pods(objects) if chosen.items() <= labels.items()]), 1, name)


if __name__ == "__main__":
    unittest.main()
