//! Import circles: modules of a crate that reach one another by `use`.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Source;

/// Imports between the modules (files) of one crate.
#[derive(Debug, Default)]
pub struct ImportGraph {
    edges: BTreeMap<String, BTreeSet<String>>,
}

impl ImportGraph {
    /// Builds the graph from the files of a crate by module path (`""` is the crate's root, `a::b`
    /// a file deeper down). A link between a module and one that contains it is left out: a parent
    /// re-exports its parts, and parts use what their parent declares.
    #[must_use]
    pub fn new(files: &BTreeMap<String, Source>) -> Self {
        let mut edges = BTreeMap::<_, BTreeSet<_>>::new();
        for (module, source) in files {
            let targets = edges.entry(module.clone()).or_default();
            for path in imports(source) {
                let Some(absolute) = absolute(module, &path, files) else {
                    continue;
                };
                let target = owner(&absolute, files);
                if !contains(module, &target) && !contains(&target, module) {
                    targets.insert(target);
                }
            }
        }
        Self { edges }
    }

    /// Returns the circles: groups of modules of which each reaches all others.
    #[must_use]
    pub fn circles(&self) -> Vec<Vec<String>> {
        let reach: BTreeMap<_, _> = self
            .edges
            .keys()
            .map(|module| (module, self.reachable(module)))
            .collect();
        let mut seen = BTreeSet::new();
        let mut circles = Vec::new();
        for (module, reached) in &reach {
            if !reached.contains(*module) || !seen.insert((*module).clone()) {
                continue;
            }
            let circle: Vec<String> = reached
                .iter()
                .filter(|&other| reach.get(other).is_some_and(|back| back.contains(*module)))
                .cloned()
                .collect();
            seen.extend(circle.iter().cloned());
            circles.push(circle);
        }
        circles
    }

    /// Returns the modules that can be reached from `start` in at least one step.
    fn reachable(&self, start: &str) -> BTreeSet<String> {
        let mut reached = BTreeSet::new();
        let mut open = vec![start];
        while let Some(module) = open.pop() {
            for next in self.edges.get(module).into_iter().flatten() {
                if reached.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        reached
    }
}

/// Whether `outer` is `inner` or one of the modules that contain it, as the root contains all.
fn contains(outer: &str, inner: &str) -> bool {
    outer == inner
        || outer.is_empty()
        || inner
            .strip_prefix(outer)
            .is_some_and(|rest| rest.starts_with("::"))
}

/// Returns all paths that `use` declarations outside of tests name, one for each leaf.
fn imports(source: &Source) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for (start, _) in source.code.match_indices("use ") {
        let begins = source.code[..start]
            .trim_end()
            .ends_with([';', '}', '{', ']', ')', 'b'])
            || source.code[..start].trim().is_empty();
        if !begins || source.is_test(start) {
            continue;
        }
        let Some(end) = source.code[start..].find(';') else {
            continue;
        };
        expand(&[], &source.code[start + 4..start + end], &mut paths);
    }
    paths
}

/// Adds the paths of a use tree behind `prefix`.
fn expand(prefix: &[String], tree: &str, paths: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let Some((head, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or("");
        if !path.is_empty() {
            let mut whole = prefix.to_vec();
            whole.extend(path.split("::").map(|part| part.trim().to_owned()));
            paths.push(whole);
        }
        return;
    };
    let mut whole = prefix.to_vec();
    whole.extend(
        head.split("::")
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(str::to_owned),
    );
    let group = group.trim_end();
    let group = group.strip_suffix('}').unwrap_or(group);
    let mut depth = 0usize;
    let mut part = String::new();
    for letter in group.chars().chain([',']) {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                expand(&whole, &std::mem::take(&mut part), paths);
                continue;
            }
            _ => {}
        }
        part.push(letter);
    }
}

/// Resolves the path that `module` imports to one from the crate's root; `None` for other crates.
fn absolute(module: &str, path: &[String], files: &BTreeMap<String, Source>) -> Option<String> {
    let mut base: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        first => {
            let child = join(&base, first);
            if !files.contains_key(&child) {
                return None;
            }
        }
    }
    let mut whole: Vec<&str> = base;
    whole.extend(rest.iter().map(String::as_str));
    Some(whole.join("::"))
}

/// Returns the module path of `name` in `base`.
fn join(base: &[&str], name: &str) -> String {
    let mut whole = base.to_vec();
    whole.push(name);
    whole.join("::")
}

/// Returns the deepest module with a file of its own that `path` goes through.
fn owner(path: &str, files: &BTreeMap<String, Source>) -> String {
    let mut path = path;
    loop {
        if files.contains_key(path) {
            return path.to_owned();
        }
        match path.rsplit_once("::") {
            Some((before, _)) => path = before,
            None => return String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files = files
            .iter()
            .map(|&(module, text)| (module.to_owned(), Source::new(text.to_owned())))
            .collect();
        ImportGraph::new(&files).circles()
    }

    #[test]
    fn two_modules_that_use_each_other_are_a_circle() {
        let found = circles(&[
            ("", "mod a; mod b;"),
            ("a", "use crate::b::{self, C};"),
            ("b", "use std::fmt;\nuse super::a::D;"),
        ]);
        assert_eq!(found, [["a", "b"]]);
    }

    #[test]
    fn a_chain_is_no_circle_and_tests_do_not_count() {
        let found = circles(&[
            ("", ""),
            ("a", "use crate::b::C;"),
            ("b", "#[cfg(test)]\nmod tests {\n    use crate::a::D;\n}"),
        ]);
        assert!(found.is_empty());
    }

    #[test]
    fn a_parent_and_its_parts_are_no_circle() {
        let found = circles(&[
            ("", "pub use a::B;"),
            ("a", "mod c;\npub use c::B;\nuse self::c::E;"),
            ("a::c", "use super::D;\nuse crate::F;"),
        ]);
        assert!(found.is_empty());
    }

    #[test]
    fn nested_groups_are_followed_and_three_modules_are_one_circle() {
        let found = circles(&[
            ("a", "use crate::{b::{x, Y as Z}, other::T};"),
            ("b", "pub(crate) use crate::c::d::E;"),
            ("b::inner", ""),
            ("c", "use super::a;"),
        ]);
        assert_eq!(found, [["a", "b", "c"]]);
    }

    #[test]
    fn a_path_belongs_to_the_deepest_file() {
        let found = circles(&[
            ("a", "use crate::b::inner::Type;"),
            ("b", "use crate::a::Other;"),
            ("b::inner", ""),
        ]);
        assert!(found.is_empty());
    }
}
