//! Settings of a program, as they are declared.

use std::any::TypeId;
use std::path::PathBuf;

use clap::builder::Resettable::Reset;
use clap::{Arg, ArgAction, Args, Command};

use crate::values::boolean;

/// Setting that names the TOML file; every program has it, and the file itself cannot.
pub const CONFIG: &str = "config";

/// Placeholder of a list that is parsed as one text.
const LIST: &str = "LIST";

/// All settings of a program.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    /// Prefix of its variables.
    pub prefix: &'static str,
    /// Declared settings.
    pub keys: Keys,
    /// Returns the part of a secret that may be shown, by the setting's name and the text.
    pub hidden: fn(&str, &str) -> String,
    /// Problem where a required setting is not given.
    pub missing: &'static str,
    /// Setting of which an empty variable is a value; otherwise it is none.
    pub empty: &'static str,
    /// Settings that a command needs; all if there are none.
    pub only: &'a [&'a str],
}

/// Declared settings, or keys of a `[[name]]` table.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    arguments: fn(Command) -> Command,
    tables: Tables,
}

/// Settings that are tables, by name, and their keys. A flag or variable gives each only its first
/// key; where the setting has no flag, only the file can have it, under its value's name.
pub type Tables = &'static [(&'static str, Keys)];

/// Form of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A text; in a TOML file, a number as well.
    Text,
    /// A file or folder; in a TOML file, a relative one counts from that file's folder.
    Path,
    /// True or false; the flag alone means true.
    Switch,
    /// A text that can be left out; in a TOML file, true or false as well.
    Optional,
    /// Several texts.
    List,
    /// Tables.
    Tables,
}

/// A setting, or a key of a table.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Name, with underscores.
    pub name: String,
    /// Declaration.
    pub arg: Arg,
    /// Keys of its tables, if it is some.
    pub tables: Option<&'static Keys>,
}

impl Keys {
    /// Returns the settings that `S` declares; `tables` are those that are tables.
    pub const fn of<S: Args>(tables: Tables) -> Self {
        let arguments = S::augment_args;
        Self { arguments, tables }
    }

    /// Returns a command line with the settings as they are declared.
    pub(super) fn declared(&self) -> Command {
        (self.arguments)(Command::new("settings").no_binary_name(true)).mut_args(switch)
    }

    /// Returns the settings in the order of their declaration.
    pub fn settings(&self) -> Vec<Setting> {
        let command = self.declared();
        let settings = command.get_arguments().map(|arg| {
            let (name, arg) = (name(arg), arg.clone());
            let tables = self.tables.iter().find(|(setting, _)| *setting == name);
            let tables = tables.map(|(_, keys)| keys);
            Setting { name, arg, tables }
        });
        settings.collect()
    }

    /// Returns the command line that the settings of all places are parsed as. Each has a flag, and
    /// none is required: who requires it can say more.
    pub(super) fn command(&self) -> Command {
        self.declared().mut_args(|arg| {
            let flag = arg.get_long().unwrap_or(arg.get_id().as_str()).to_owned();
            as_text(arg).long(flag)
        })
    }
}

/// Leaves to the layers what they do themselves: to require a setting, to exclude one, and to split
/// a list.
pub(super) fn as_text(arg: Arg) -> Arg {
    let arg = arg.required(false).conflicts_with(Reset);
    arg.env(Reset).value_delimiter(Reset)
}

/// Returns the name of a setting.
pub(super) fn name(arg: &Arg) -> String {
    let flag = arg.get_long().unwrap_or(arg.get_id().as_str());
    flag.replace('-', "_")
}

impl Table<'_> {
    /// Returns the table of a program that declares `S`; see [`Keys::of`].
    pub const fn of<S: Args>(prefix: &'static str, tables: Tables) -> Self {
        Self {
            prefix,
            keys: Keys::of::<S>(tables),
            hidden: |_, _| "(secret)".to_owned(),
            missing: "",
            empty: "",
            only: &[],
        }
    }

    /// Returns the settings in the order of the help.
    pub fn settings(&self) -> Vec<Setting> {
        self.keys.settings()
    }

    /// Whether the setting is needed, or the file with it.
    pub(super) fn wants(&self, name: &str) -> bool {
        let name = name.strip_suffix("_file").unwrap_or(name);
        self.only.is_empty() || self.only.contains(&name)
    }

    /// Returns the environment variable of a setting.
    pub fn variable(&self, setting: &Setting) -> String {
        format!("{}{}", self.prefix, setting.name.to_ascii_uppercase())
    }
}

impl Setting {
    /// Returns the key in the file.
    pub fn key(&self) -> &str {
        match self.tables.is_some() && self.arg.is_hide_set() {
            true => self.value_name(),
            false => &self.name,
        }
    }

    /// Returns the placeholder of the value.
    pub fn value_name(&self) -> &str {
        let names = self.arg.get_value_names().unwrap_or_default();
        names.first().map_or("", |name| name.as_str())
    }

    /// Returns the form of the value.
    pub fn form(&self) -> Form {
        let is_optional = self.arg.get_num_args().is_some_and(|n| n.min_values() == 0);
        let is_appended = matches!(self.arg.get_action(), ArgAction::Append);
        match self.arg.get_value_parser().type_id() {
            _ if self.tables.is_some() => Form::Tables,
            value if value == TypeId::of::<bool>() => Form::Switch,
            value if value == TypeId::of::<PathBuf>() => Form::Path,
            _ if is_appended || self.value_name() == LIST => Form::List,
            _ if is_optional => Form::Optional,
            _ => Form::Text,
        }
    }

    /// Whether the value is hidden.
    pub fn is_secret(&self) -> bool {
        self.arg.is_hide_env_values_set()
    }

    /// Returns the name under which a file with the value is given; `None` if it is no secret.
    pub fn file(&self) -> Option<String> {
        let may_be_in_file = self.is_secret() && self.tables.is_none();
        may_be_in_file.then(|| format!("{}_file", self.name))
    }

    /// Whether it can be on the command line.
    pub fn on_line(&self) -> bool {
        !self.arg.is_hide_set()
    }

    /// Whether it can be in a variable.
    pub fn in_variable(&self) -> bool {
        self.key() == self.name
    }

    /// Whether it can be in the file.
    pub fn in_file(&self) -> bool {
        self.name != CONFIG
    }

    /// Returns the help, and the default in words.
    pub fn help(&self) -> (String, String) {
        let help = self.arg.get_help().map(ToString::to_string);
        let help = help.unwrap_or_default();
        match help.split_once(" [default: ") {
            Some((help, words)) => (help.to_owned(), words.trim_end_matches(']').to_owned()),
            None => (help, String::new()),
        }
    }

    /// Returns the default as text; empty for none.
    pub fn default(&self) -> String {
        let defaults = self.arg.get_default_values().iter();
        let defaults: Vec<_> = defaults.map(|text| text.to_string_lossy()).collect();
        defaults.join(",")
    }

    /// Returns the items of several texts of one place: a list's, or the last text.
    pub fn items<T: AsRef<str>>(&self, texts: impl IntoIterator<Item = T>) -> Vec<String> {
        let mut texts: Vec<String> = texts.into_iter().map(|t| t.as_ref().to_owned()).collect();
        match (self.arg.get_value_delimiter(), self.form()) {
            (Some(delimiter), _) => {
                let fits = |c: char| c == delimiter || (delimiter == ' ' && c.is_whitespace());
                let items = texts.iter().flat_map(|text| text.split(fits));
                let items = items.map(str::trim).filter(|item| !item.is_empty());
                items.map(str::to_owned).collect()
            }
            (None, Form::List) => vec![texts.join(",")],
            (None, Form::Tables) => texts,
            _ => texts.pop().into_iter().collect(),
        }
    }
}

/// Makes a flag without a value one that can have one: `--capture=false` overrides a variable. One
/// with `SetFalse` is the opposite of its field: `no-json` of `json`.
fn switch(arg: Arg) -> Arg {
    let opposite = match arg.get_action() {
        ArgAction::SetTrue => false,
        ArgAction::SetFalse => true,
        _ => return arg,
    };
    arg.action(ArgAction::Set)
        .value_parser(move |text: &str| boolean(text).map(|on| on != opposite))
        .value_name("true|false")
        .num_args(0..=1)
        .require_equals(true)
        .default_value("false")
        .hide_default_value(true)
        .default_missing_value("true")
}
