//! The command line: flags made from the table of settings, and the subcommands.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::resolve::{Given, Layer, Place};
use super::settings::{self, Form, Setting};
use super::{CONFIG_FLAG, CONFIG_VARIABLE};

const EXAMPLES: &str = "\
Examples:
  Push the Linux kernel's lists to receivers on this machine:
    flexfeed-source --feed https://lore.kernel.org/all/new.atom

  Serve receivers elsewhere, which reach this machine as feeds.example.org, UDP port 4433:
    flexfeed-source --feed https://example.org/feed.atom --public-address feeds.example.org

  By IPv4 and IPv6 multicast, and a second channel beside the first:
    flexfeed-source --feed https://example.org/feed.atom --group '232.1.1.1:4434,[ff3e::1]:4434' \\
      --channel-spec 'news,feed=https://example.org/news.atom,rate=5M'

  Without multicast and copies, every receiver on its own connection:
    flexfeed-source --feed https://example.org/feed.atom --group '' --no-replicate

Flags win over FLEXFEED_… variables, those over the configuration file, and that over the defaults.
The first start makes a certificate and prints an enrolment link for receivers. It stays in
DIR/enrolment-link.";

/// Returns the definition of the command line.
pub fn command() -> Command {
    let root = Command::new("flexfeed-source")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Reads feeds and pushes every new entry to all receivers at once")
        .after_help(EXAMPLES)
        .max_term_width(100);
    with_settings(root, |_| true).subcommand(with_settings(
        Command::new("run").about("Runs the source; this is what happens without a command, too"),
        |_| true,
    ))
}

/// Adds `--config` and the flags of those settings whose names are wanted.
pub fn with_settings(command: Command, wanted: impl Fn(&str) -> bool) -> Command {
    let config = Arg::new(CONFIG_FLAG)
        .long(CONFIG_FLAG)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help(format!(
            "A configuration file (TOML): its keys are the names of the variables in small \
             letters without FLEXFEED_, and it may have [[channel]] and [[channel.feed]] \
             [env: {CONFIG_VARIABLE}]"
        ));
    let settings = settings::ALL.iter().filter(|setting| wanted(setting.name));
    command.arg(config).args(settings.map(flag))
}

fn flag(setting: &'static Setting) -> Arg {
    let mut help = format!("{} [env: {}]", setting.help, setting.variable());
    if !setting.default.is_empty() {
        help.push_str(&format!(" [default: {}]", setting.default));
    }
    let mut arg = Arg::new(setting.name).long(setting.name).help(help);
    if setting.name == "amt-relay" {
        arg = arg.visible_alias("relay");
    }
    match setting.form {
        // `--asm` is for yes; `--asm=false` for no, where a variable or the file says yes.
        Form::Switch => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("true|false"),
        Form::Maybe(alone) => arg
            .num_args(0..=1)
            .default_missing_value(alone)
            .value_name(setting.value),
        Form::List(' ') => arg.value_name(setting.value).action(ArgAction::Append),
        _ => arg.value_name(setting.value),
    }
}

/// Returns the settings of the flags: those of a subcommand win over those before it.
pub(super) fn layer(matches: &ArgMatches) -> Layer {
    let mut layer = Layer::new();
    for matches in path(matches) {
        for setting in settings::ALL {
            if let Some(text) = given(matches, setting) {
                let place = Place::Flag(setting.name);
                layer.insert(setting.name, Given { text, place });
            }
        }
    }
    layer
}

/// The configuration file that `--config` names.
pub(super) fn config(matches: &ArgMatches) -> Option<PathBuf> {
    let given = path(matches).filter_map(|m| {
        m.try_get_one::<PathBuf>(CONFIG_FLAG)
            .ok()
            .flatten()
            .cloned()
    });
    given.last()
}

/// The matches of the program, of its subcommand, of the subcommand's subcommand, ….
fn path(matches: &ArgMatches) -> impl Iterator<Item = &ArgMatches> {
    std::iter::successors(Some(matches), |matches| {
        matches.subcommand().map(|(_, inner)| inner)
    })
}

fn given(matches: &ArgMatches, setting: &Setting) -> Option<String> {
    // Not every command has every setting.
    let values = matches.try_get_many::<String>(setting.name).ok()??;
    if matches.value_source(setting.name) != Some(ValueSource::CommandLine) {
        return None;
    }
    let separator = match setting.form {
        Form::List(separator) => separator.to_string(),
        _ => String::new(),
    };
    let values: Vec<&str> = values.map(String::as_str).collect();
    Some(values.join(&separator))
}
