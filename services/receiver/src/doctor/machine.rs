//! Properties of the machine.

use std::path::Path;

use super::report::{Report, Verdict};

pub(super) fn examine(report: &mut Report) {
    if let Some(kind) = container(Path::new("/")) {
        let what = format!("this runs in a container ({kind})");
        let advice = "most container networks drop multicast: receivers there get replicated \
            packets, which needs nothing; for multicast, use the host's network";
        report.add("machine", Verdict::Ok, &what, advice);
    }
}

/// Returns the kind of container with the file system `root`, if it is one.
fn container(root: &Path) -> Option<String> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    if root.join("run/.containerenv").exists() {
        return Some("podman".into());
    }
    if root.join(".dockerenv").exists() {
        return Some("docker".into());
    }
    if root.join("var/run/secrets/kubernetes.io").exists() {
        return Some("kubernetes".into());
    }
    let kind = read("run/systemd/container");
    if !kind.trim().is_empty() {
        return Some(kind.trim().to_owned());
    }
    let groups = read("proc/1/cgroup");
    let known = ["docker", "kubepods", "containerd", "lxc", "libpod"];
    known
        .into_iter()
        .find(|name| groups.contains(name))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    #[test]
    fn containers_are_recognised_by_their_traces() {
        for (path, content, kind) in [
            ("run/.containerenv", "", Some("podman")),
            (".dockerenv", "", Some("docker")),
            (
                "run/systemd/container",
                "systemd-nspawn\n",
                Some("systemd-nspawn"),
            ),
            (
                "proc/1/cgroup",
                "0::/kubepods/besteffort/x\n",
                Some("kubepods"),
            ),
            ("proc/1/cgroup", "0::/init.scope\n", None),
        ] {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
            assert_eq!(container(root.path()).as_deref(), kind);
        }
    }
}
