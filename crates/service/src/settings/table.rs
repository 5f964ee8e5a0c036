//! Settings of a program, each declared once.

use crate::peer_text::plain;

/// Setting that names the TOML file; every program has it, and the file itself cannot.
pub const CONFIG: &str = "config";

/// Form of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A text; in a TOML file, a number as well.
    Text,
    /// A file or folder; in a TOML file, a relative one counts from that file's folder.
    Path,
    /// True or false; the flag alone means true.
    Switch,
    /// A switch that may have a value instead; the flag alone means this one.
    Optional(&'static str),
    /// Several: separated by commas, the flag repeated, or a list in the TOML file.
    List,
    /// Several texts. In the TOML file each is a table `[[name]]` with these keys; a flag or
    /// variable gives only the first of the keys.
    Sections(&'static [Key]),
}

/// Place of a setting besides its variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A flag, and the file.
    Everywhere,
    /// An argument without a name, and the file.
    Argument,
    /// A flag, not the file: the setting is about the file.
    NotInFile,
    /// The file, not a flag, which is visible in the list of processes.
    NotAsFlag,
    /// The file alone: not even a variable.
    InFileOnly,
}

/// One setting: a row of a [`Table`], declared with [`setting!`](crate::setting). Its key in the
/// TOML file is its name, its flag the name with hyphens, its variable the name in capitals after
/// the table's prefix.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Name.
    pub name: &'static str,
    /// Flag without the two hyphens in front.
    pub flag: &'static str,
    /// Key in the file. Tables may share the key of another setting.
    pub key: &'static str,
    /// Another flag with the same effect.
    pub alias: Option<&'static str>,
    /// A variable without the prefix, read where the setting's own is not set.
    pub general_variable: Option<&'static str>,
    /// Whether white space separates several values in the variable.
    pub words: bool,
    /// Whether an empty variable is a value; otherwise it is none.
    pub empty: bool,
    /// Whether the value can be in a file, which the variable with `_FILE` at its end names.
    pub secret: bool,
    /// Placeholder of the value in the help.
    pub value: &'static str,
    /// Form of the value.
    pub form: Form,
    /// Place besides the variable.
    pub place: Place,
    /// Default as shown.
    pub default: &'static str,
    /// Returns the part of the value that may be shown.
    pub shown: fn(&str) -> String,
    /// Help.
    pub help: &'static str,
}

/// Declares a [`Setting`](crate::settings::Setting) by its name, the placeholder of its value, and
/// its help: a text that can be given everywhere. Methods say what differs.
#[macro_export]
macro_rules! setting {
    ($name:literal, $value:literal, $help:expr $(,)?) => {{
        const FLAG: [u8; $name.len()] = $crate::settings::table::hyphenated($name);
        let flag = match std::str::from_utf8(&FLAG) {
            Ok(flag) => flag,
            Err(_) => $name,
        };
        $crate::settings::Setting::new($name, flag, $value, $help)
    }};
}

/// Returns a name with hyphens in place of underscores.
#[must_use]
pub const fn hyphenated<const LENGTH: usize>(name: &str) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    let mut at = 0;
    while at < LENGTH {
        bytes[at] = match name.as_bytes()[at] {
            b'_' => b'-',
            byte => byte,
        };
        at += 1;
    }
    bytes
}

impl Setting {
    /// The setting that names the TOML file.
    pub const CONFIG: Setting = setting!("config", "FILE", "A TOML file with settings")
        .path()
        .not_in_file();

    /// Returns a text that can be given everywhere; see [`setting!`](crate::setting).
    #[must_use]
    pub const fn new(
        name: &'static str,
        flag: &'static str,
        value: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            flag,
            key: name,
            alias: None,
            general_variable: None,
            words: false,
            empty: false,
            secret: false,
            value,
            form: Form::Text,
            place: Place::Everywhere,
            default: "",
            shown: plain,
            help,
        }
    }

    /// Makes it a file or folder.
    #[must_use]
    pub const fn path(mut self) -> Self {
        self.form = Form::Path;
        self
    }

    /// Makes it a switch, which is off by default.
    #[must_use]
    pub const fn switch(mut self) -> Self {
        self.form = Form::Switch;
        self.default = "false";
        self
    }

    /// Makes it a switch that may have a value; `alone` is that of the flag alone.
    #[must_use]
    pub const fn optional(mut self, alone: &'static str) -> Self {
        self.form = Form::Optional(alone);
        self
    }

    /// Makes it a list.
    #[must_use]
    pub const fn list(mut self) -> Self {
        self.form = Form::List;
        self
    }

    /// Makes it several texts, or tables with these keys in the file.
    #[must_use]
    pub const fn sections(mut self, keys: &'static [Key]) -> Self {
        self.form = Form::Sections(keys);
        self
    }

    /// Makes it tables of the file alone, under the key of another setting.
    #[must_use]
    pub const fn tables(mut self, key: &'static str, keys: &'static [Key]) -> Self {
        self.key = key;
        self.form = Form::Sections(keys);
        self.place = Place::InFileOnly;
        self
    }

    /// Makes it an argument without a name.
    #[must_use]
    pub const fn argument(mut self) -> Self {
        self.place = Place::Argument;
        self
    }

    /// Keeps it out of the file.
    #[must_use]
    pub const fn not_in_file(mut self) -> Self {
        self.place = Place::NotInFile;
        self
    }

    /// Keeps it off the command line.
    #[must_use]
    pub const fn not_as_flag(mut self) -> Self {
        self.place = Place::NotAsFlag;
        self
    }

    /// Gives it a default, as shown.
    #[must_use]
    pub const fn default(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    /// Gives it another flag.
    #[must_use]
    pub const fn alias(mut self, flag: &'static str) -> Self {
        self.alias = Some(flag);
        self
    }

    /// Gives it a variable without the prefix, read where its own is not set.
    #[must_use]
    pub const fn general_variable(mut self, name: &'static str) -> Self {
        self.general_variable = Some(name);
        self
    }

    /// Separates several values in its variable by white space.
    #[must_use]
    pub const fn words(mut self) -> Self {
        self.words = true;
        self
    }

    /// Makes an empty variable a value.
    #[must_use]
    pub const fn or_empty(mut self) -> Self {
        self.empty = true;
        self
    }

    /// Hides its value, and takes it from a file that the variable with `_FILE` names as well.
    #[must_use]
    pub const fn secret(mut self) -> Self {
        self.secret = true;
        self.shown = hidden;
        self
    }

    /// Shows only this of its value.
    #[must_use]
    pub const fn shown(mut self, shown: fn(&str) -> String) -> Self {
        self.shown = shown;
        self
    }

    /// Whether it can be on the command line.
    #[must_use]
    pub fn on_line(&self) -> bool {
        !matches!(self.place, Place::NotAsFlag | Place::InFileOnly)
    }

    /// Whether it can be in a variable.
    #[must_use]
    pub fn in_variable(&self) -> bool {
        self.place != Place::InFileOnly
    }

    /// Whether it can be in the file.
    #[must_use]
    pub fn in_file(&self) -> bool {
        self.place != Place::NotInFile
    }
}

/// Returns the text in place of a secret.
#[must_use]
pub fn hidden(_: &str) -> String {
    "(secret)".to_owned()
}

/// A key of a `[[name]]` table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Name.
    pub name: &'static str,
    /// Form of the value.
    pub form: Form,
    /// Default as shown.
    pub default: &'static str,
    /// Help.
    pub help: &'static str,
}

impl Key {
    /// Returns a key.
    #[must_use]
    pub const fn new(
        name: &'static str,
        form: Form,
        default: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            form,
            default,
            help,
        }
    }
}

/// All settings of a program.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// Prefix of its variables.
    pub prefix: &'static str,
    /// Settings in the order of the help.
    pub settings: &'static [Setting],
    /// Variables with the prefix that something else in the program reads.
    pub other_variables: &'static [&'static str],
    /// Whether a value has to be valid although a stronger layer overrides it, or although it is
    /// empty.
    pub strict: bool,
}

impl Table {
    /// Returns the setting with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&'static Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }

    /// Returns the environment variable of a setting.
    #[must_use]
    pub fn variable(&self, setting: &Setting) -> String {
        format!("{}{}", self.prefix, setting.name.to_ascii_uppercase())
    }
}
