//! Every setting of a program, named once.

use crate::peer_text::plain;

/// The setting that names the TOML file; it is of every program and never in the file itself.
pub const CONFIG: &str = "config";

/// How a setting is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// A file or folder; in a TOML file, a relative one counts from that file's folder.
    Path,
    /// A whole number, or a text for one with a unit.
    Number,
    /// True or false; the flag alone means true.
    Switch,
    /// Several: separated by commas, the flag repeated, or a list in the TOML file.
    List,
    /// Several texts. In the TOML file each is a table of its own, which begins with `[[name]]` and has
    /// these keys; a flag or variable gives the first of the keys only.
    Sections(&'static [Key]),
}

/// Where a setting can be given beside its variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// By a flag and in the file.
    Everywhere,
    /// As an argument without a name, and in the file.
    Argument,
    /// By a flag, not in the file: it is about the file.
    NotInFile,
    /// In the file, not by a flag, which everybody who lists processes would see.
    NotAsFlag,
}

/// One setting. Its key in the TOML file is its name, its flag the same with hyphens, its variable
/// the same in capitals after the table's prefix.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// Its flag without the two hyphens in front: the name with hyphens.
    pub flag: &'static str,
    /// Another flag that does the same.
    pub alias: Option<&'static str>,
    /// A variable without the prefix, which counts where its own is not set.
    pub general_variable: Option<&'static str>,
    /// In its variable, several are separated by white space.
    pub words: bool,
    /// What stands for its value in texts.
    pub value: &'static str,
    /// How it is written.
    pub form: Form,
    /// Where it can be given.
    pub place: Place,
    /// What it is without being given, as shown.
    pub default: &'static str,
    /// What may be shown of its value.
    pub shown: fn(&str) -> String,
    /// What it does.
    pub help: &'static str,
}

impl Setting {
    /// A text that can be given everywhere; tables say what is different from it.
    pub const PLAIN: Setting = Setting {
        name: "",
        flag: "",
        alias: None,
        general_variable: None,
        words: false,
        value: "",
        form: Form::Text,
        place: Place::Everywhere,
        default: "",
        shown: plain,
        help: "",
    };

    /// Whether it can stand on the command line.
    #[must_use]
    pub fn on_line(&self) -> bool {
        self.place != Place::NotAsFlag
    }

    /// Whether it can stand in the file.
    #[must_use]
    pub fn in_file(&self) -> bool {
        self.place != Place::NotInFile
    }
}

/// What is shown of a setting that may hold a secret.
#[must_use]
pub fn hidden(_: &str) -> String {
    "(secret)".to_owned()
}

/// A key of a `[[name]]` table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// As it is written.
    pub name: &'static str,
    /// How its value is.
    pub form: KeyForm,
    /// Without being given, as shown.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// How the value of a table's key is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyForm {
    /// A text.
    Text,
    /// A file, from the TOML file's folder.
    Path,
    /// A whole number.
    Number,
    /// A list of texts.
    Texts,
}

/// All settings of a program.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// What all of its variables begin with.
    pub prefix: &'static str,
    /// In the order of the help.
    pub settings: &'static [Setting],
    /// Variables that begin like settings and are read by something else in the program.
    pub other_variables: &'static [&'static str],
}

impl Table {
    /// The setting with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&'static Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }

    /// The environment variable of a setting.
    #[must_use]
    pub fn variable(&self, setting: &Setting) -> String {
        format!("{}{}", self.prefix, setting.name.to_ascii_uppercase())
    }
}
