//! The command line of running the source.

use clap::Command;

use super::table::TABLE;

const EXAMPLES: &str = "\
Examples:
  Push the Linux kernel's lists to receivers on this machine:
    flexfeed-source --feed https://lore.kernel.org/all/new.atom

  Serve receivers elsewhere, which reach this machine as feeds.example.org, UDP port 4433:
    flexfeed-source --feed https://example.org/feed.atom --public-address feeds.example.org

  By IPv4 and IPv6 multicast, and a second channel:
    flexfeed-source --feed https://example.org/feed.atom --group '232.1.1.1:4434,[ff3e::1]:4434' \\
      --channel-spec 'news,feed=https://example.org/news.atom,rate=5M'

  Without multicast and copies, every receiver on its own connection:
    flexfeed-source --feed https://example.org/feed.atom --group '' --no-replicate

Flags win over FLEXFEED_… variables, those over the configuration file, and that over the defaults.
The first start makes a certificate and prints an enrolment link for receivers. It stays in
DIR/enrolment-link.";

/// Returns the definition of the command line without the other commands.
pub fn command() -> Command {
    let run = Command::new("run").about("Run the source; this is the default");
    Command::new("flexfeed-source")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Reads feeds and pushes every new entry to all receivers at once")
        .after_help(EXAMPLES)
        .max_term_width(100)
        .args(TABLE.options())
        .subcommand(run.args(TABLE.options()))
}
