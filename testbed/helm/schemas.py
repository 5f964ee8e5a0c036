"""Validates all objects of all scenarios against the schemas of several versions of Kubernetes, and of the optional APIs.

The schemas of Kubernetes are those that the package kubernetes-validate carries. Those of HTTPRoute, ServiceMonitor and
PrometheusRule are the definitions that their projects publish, in the folders that FLEXFEED_CRDS names (separated by ":").
"""

import os
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml
from chart import SCENARIOS, rendered

# Kinds of optional APIs in the chart.
OPTIONAL = ("httproutes", "servicemonitors", "prometheusrules")
# The oldest that the chart takes, the newest that the package knows, and some between; it knows their schemas, not their last patches.
VERSIONS = ("1.25", "1.29", "1.33", "1.37")


def strict(schema):
    """The schema with nothing beside what it names, as the server would prune it. What may hold anything stays open."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: strict(value) for key, value in schema.items()}
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-int-or-string")
    if "properties" in schema and isinstance(schema["properties"], dict) and not open_ended:
        out.setdefault("additionalProperties", False)
    if "(?i)" in str(schema.get("pattern", "")):
        # Go takes this anywhere, Python at the beginning only.
        out["pattern"] = "(?i)" + schema["pattern"].replace("(?i)", "")
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
    return out


def definitions():
    """{(apiVersion, kind): schema} of the optional APIs."""
    found = {}
    for folder in filter(None, os.environ.get("FLEXFEED_CRDS", "").split(":")):
        for path in (one for name in OPTIONAL for one in pathlib.Path(folder).glob(f"*_{name}.yaml")):
            spec = yaml.safe_load(path.read_text())["spec"]
            for version in spec["versions"]:
                schema = strict(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def wrong(one, version, optional):
    """Returns the errors of an object, perhaps none; `None` without a schema for it."""
    key = one["apiVersion"], one["kind"]
    if "." in key[0].split("/")[0] and not key[0].split("/")[0].endswith("k8s.io") or key[0].startswith("gateway."):
        schema = optional.get(key)
        if schema is None:
            return None
        try:
            jsonschema.validate(one, schema)
        except jsonschema.ValidationError as error:
            return f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
        return ""
    try:
        kubernetes_validate.validate(one, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error)
    return ""


def main():
    optional = definitions()
    checked, unknown, failures = 0, set(), []
    # The validation itself has to be able to fail.
    for one in rendered("-f", SCENARIOS[1]):
        if "spec" in one:
            one["spec"]["no-such-key"] = 1
            assert wrong(one, VERSIONS[-1], optional) != "", f"a key that {one['kind']} does not have is not noticed"
    for version in VERSIONS:
        for path in SCENARIOS:
            for one in rendered("-f", path, kubernetes=f"{version}.0"):
                said = wrong(one, version, optional)
                name = f"{one['kind']}/{one['metadata']['name']}"
                if said is None:
                    unknown.add(one["kind"])
                    continue
                checked += 1
                if said:
                    failures.append(f"{path.name}, Kubernetes {version}: {name}: {said}")
    for line in failures:
        print(line)
    print(f"schemas: {checked} objects of {len(SCENARIOS)} scenarios, Kubernetes {', '.join(VERSIONS)}")
    if unknown:
        print(f"!!! SKIPPED: there is no schema here for {', '.join(sorted(unknown))}")
        if os.environ.get("FLEXFEED_REQUIRE_PEERS"):
            return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
