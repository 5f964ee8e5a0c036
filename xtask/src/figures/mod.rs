//! `./dev figures`: figures about the code that are worth watching.

pub mod imports;
pub mod source;

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::workspace::{self, Package};
use imports::ImportGraph;
use source::Source;

/// First words of doc blocks that name nothing.
const VAGUE_OPENINGS: &[&str] = &["What", "Who", "Whom", "Whose", "How", "That", "They", "It"];

/// A struct with more fields than this is several ideas.
const MOST_FIELDS: usize = 20;

/// Folders of the workspace whose packages are the product; the others test it or work on it.
const PRODUCT: &[&str] = &["crates", "services"];

/// Prints the figures of the workspace at `root`.
///
/// # Errors
///
/// `cargo metadata` failed, or a file could not be read.
pub fn run(root: &Path, timings: &Path) -> Result<()> {
    let mut figures = Figures::default();
    for package in workspace::packages(root)? {
        let folder = package.folder.strip_prefix(root).unwrap_or(&package.folder);
        let is_product = PRODUCT.iter().any(|product| folder.starts_with(product));
        figures.add(&package, is_product)?;
    }
    for path in rust_files(&root.join("fuzz/targets"))? {
        figures.add_file(&path, &read(&path)?);
    }
    figures.largest = figures.largest.map(|(lines, path)| {
        let path = path.strip_prefix(root).map(Path::to_owned).unwrap_or(path);
        (lines, path)
    });
    print!("{figures}");
    if let Ok(timings) = fs::read_to_string(timings) {
        println!("\nlast .ci/run:\n{}", timings.trim_end());
    }
    Ok(())
}

/// Figures of a workspace.
#[derive(Debug, Default)]
struct Figures {
    doc_blocks: usize,
    vague_doc_blocks: usize,
    product_lines: BTreeMap<String, usize>,
    other_lines: usize,
    largest: Option<(usize, PathBuf)>,
    wide_structs: Vec<(String, usize)>,
    circles: Vec<String>,
    unit_tests: usize,
    integration_tests: usize,
    async_trait_methods: usize,
}

impl Figures {
    /// Adds all files of a package.
    fn add(&mut self, package: &Package, is_product: bool) -> Result<()> {
        let mut lines = 0;
        let mut modules = BTreeMap::new();
        let mut test_modules = Vec::new();
        for path in rust_files(&package.folder)? {
            let source = Source::new(read(&path)?);
            self.add_file(&path, &source.text);
            let Ok(inside) = path.strip_prefix(package.folder.join("src")) else {
                continue;
            };
            let mut module = module_path(inside);
            if modules.contains_key(&module) {
                // A program in the same package as the library.
                module = "main".to_owned();
            }
            for name in &source.test_modules {
                test_modules.push(if module.is_empty() {
                    name.clone()
                } else {
                    format!("{module}::{name}")
                });
            }
            modules.insert(module, source);
        }
        modules.retain(|module, _| {
            !test_modules.iter().any(|test| {
                module == test
                    || module
                        .strip_prefix(test.as_str())
                        .is_some_and(|rest| rest.starts_with("::"))
            })
        });
        for (module, source) in &modules {
            lines += source.code_lines();
            if is_product {
                self.add_shapes(&package.name, module, source);
            }
        }
        if is_product {
            self.product_lines.insert(package.name.clone(), lines);
            for circle in ImportGraph::new(&modules).circles() {
                self.circles
                    .push(format!("{}: {}", package.name, circle.join(", ")));
            }
        } else {
            self.other_lines += lines;
        }
        self.unit_tests += package.unit_tests;
        self.integration_tests += package.integration_tests;
        Ok(())
    }

    /// Adds what is counted in every file, tests included.
    fn add_file(&mut self, path: &Path, text: &str) {
        let source = Source::new(text.to_owned());
        let openings = source.doc_openings();
        self.doc_blocks += openings.len();
        self.vague_doc_blocks += openings.iter().filter(|line| is_vague(line)).count();
        let lines = text.lines().count();
        if self.largest.as_ref().is_none_or(|(most, _)| lines > *most) {
            self.largest = Some((lines, path.to_owned()));
        }
    }

    /// Adds the structs and traits of a file of the product.
    fn add_shapes(&mut self, package: &str, module: &str, source: &Source) {
        for (name, _, body) in source.bodies("struct") {
            let fields = fields(body);
            if fields > MOST_FIELDS {
                let module = module.replace("::", "/");
                self.wide_structs
                    .push((format!("{package} {module} {name}"), fields));
            }
        }
        for (_, _, body) in source.bodies("trait") {
            self.async_trait_methods += body.matches("async fn ").count();
        }
    }
}

impl Display for Figures {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.vague_doc_blocks as f64 / self.doc_blocks.max(1) as f64;
        let product: usize = self.product_lines.values().sum();
        writeln!(
            f,
            "doc blocks that open with {}: {} of {} ({share:.1} %)",
            VAGUE_OPENINGS.join("/"),
            self.vague_doc_blocks,
            self.doc_blocks
        )?;
        writeln!(
            f,
            "product code lines (no tests, blanks, comments): {product}"
        )?;
        for (name, lines) in &self.product_lines {
            writeln!(f, "  {lines:>6}  {name}")?;
        }
        writeln!(f, "code lines of test tools: {}", self.other_lines)?;
        if let Some((lines, path)) = &self.largest {
            writeln!(f, "largest file: {lines} lines, {}", path.display())?;
        }
        let wide = self.wide_structs.len();
        writeln!(f, "structs with more than {MOST_FIELDS} fields: {wide}")?;
        for (name, fields) in &self.wide_structs {
            writeln!(f, "  {fields:>6}  {name}")?;
        }
        writeln!(f, "import circles: {}", self.circles.len())?;
        for circle in &self.circles {
            writeln!(f, "  {circle}")?;
        }
        writeln!(
            f,
            "test programs linked: {} ({} of integration tests, {} of units)",
            self.integration_tests + self.unit_tests,
            self.integration_tests,
            self.unit_tests
        )?;
        writeln!(f, "async trait methods: {}", self.async_trait_methods)
    }
}

/// Whether a doc block that begins with this line says nothing about what it documents.
fn is_vague(line: &str) -> bool {
    let first = line
        .split(|c: char| !c.is_alphanumeric())
        .next()
        .unwrap_or("");
    VAGUE_OPENINGS.contains(&first)
}

/// Returns the number of fields in the body of a struct.
fn fields(body: &str) -> usize {
    let mut depth = 0i32;
    let mut before = ' ';
    let mut count = 0;
    let mut letters = body.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '{' | '(' | '[' | '<' => depth += 1,
            '>' if before == '-' => {}
            '}' | ')' | ']' | '>' => depth -= 1,
            ':' if depth == 0 && before != ':' && letters.peek() != Some(&':') => count += 1,
            _ => {}
        }
        before = letter;
    }
    count
}

/// Returns the module path of a file below `src`: `""` for roots, `a::b` for `a/b.rs`.
fn module_path(inside: &Path) -> String {
    let path = inside.with_extension("");
    let mut parts: Vec<String> = path
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    if parts.len() == 1 && (parts[0] == "lib" || parts[0] == "main") {
        parts.pop();
    }
    parts.join("::")
}

/// Returns all Rust files in a package, sorted; those of packages within it are left out.
///
/// # Errors
///
/// A folder could not be read.
pub fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        let listed = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        for entry in listed {
            let path = entry?.path();
            if path.is_dir() {
                let hidden = path.file_name().is_some_and(|name| name == "target");
                if !hidden && !path.join("Cargo.toml").exists() {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Reads a file; the error names it.
fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vague_openings_are_whole_words() {
        assert!(is_vague("What it does."));
        assert!(is_vague("It's there"));
        assert!(!is_vague("Items of a channel."));
        assert!(!is_vague("Returns what is there."));
        assert!(!is_vague(""));
    }

    #[test]
    fn fields_are_counted_beneath_generics_and_paths() {
        assert_eq!(
            fields("a: u8, pub b: Map<K, Vec<(u8, std::fmt::Error)>>,"),
            2
        );
        assert_eq!(fields("f: Box<dyn Fn(u8) -> Result<u8>>, g: [u8; 4]"), 2);
        assert_eq!(fields(""), 0);
    }

    #[test]
    fn module_paths_follow_the_files() {
        for (file, module) in [
            ("lib.rs", ""),
            ("main.rs", ""),
            ("a.rs", "a"),
            ("a/mod.rs", "a"),
            ("a/b.rs", "a::b"),
            ("bin/tool.rs", "bin::tool"),
        ] {
            assert_eq!(module_path(Path::new(file)), module);
        }
    }

    #[test]
    fn a_package_is_counted_without_its_tests() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("src/a")).unwrap();
        fs::create_dir_all(root.join("inner/src")).unwrap();
        fs::write(root.join("inner/Cargo.toml"), "").unwrap();
        fs::write(root.join("inner/src/lib.rs"), "fn not_ours() {}\n").unwrap();
        let lib = "//! What it is.\nmod a;\nmod b;\n#[cfg(test)]\nmod tests;\n";
        fs::write(root.join("src/lib.rs"), lib).unwrap();
        fs::write(root.join("src/tests.rs"), "fn t() {}\n").unwrap();
        fs::write(root.join("src/b.rs"), "use crate::a::A;\n").unwrap();
        let fields: String = (0..21).map(|field| format!("f{field}: u8,\n")).collect();
        let wide = format!("use crate::b;\n/// A.\nstruct A {{\n{fields}}}\n");
        fs::write(root.join("src/a/mod.rs"), wide).unwrap();
        let package = Package {
            name: "p".to_owned(),
            folder: root.to_owned(),
            unit_tests: 1,
            integration_tests: 2,
            library: None,
            dependencies: Vec::new(),
            implicit: Vec::new(),
        };
        let mut figures = Figures::default();
        figures.add(&package, true).unwrap();
        assert_eq!(figures.product_lines["p"], 2 + 1 + 24);
        assert_eq!((figures.vague_doc_blocks, figures.doc_blocks), (1, 2));
        assert_eq!(figures.wide_structs, [("p a A".to_owned(), 21)]);
        assert_eq!(figures.circles, ["p: a, b"]);
        assert_eq!((figures.unit_tests, figures.integration_tests), (1, 2));
        let shown = figures.to_string();
        assert!(shown.contains("1 of 2 (50.0 %)"), "{shown}");
    }
}
