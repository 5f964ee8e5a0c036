//! The table in the documentation.

use super::*;

/// The tables of docs/receiver.md, which are made from those of the program.
fn documented() -> String {
    let mut text = String::from(
        "| flag | variable | key of the file | default | what it is |\n|---|---|---|---|---|\n",
    );
    let default = |setting: &Setting| match setting.help() {
        (help, words) if words.is_empty() => (help, setting.default()),
        documented => documented,
    };
    for setting in &TABLE.settings() {
        let (name, form) = (&setting.name, setting.form());
        let line = match form {
            _ if !setting.on_line() => "–".to_owned(),
            _ if setting.arg.is_positional() => format!("`{}`", setting.value_name()),
            Form::Switch => format!("`--{}`", setting.arg.get_long().unwrap_or_default()),
            _ => format!(
                "`--{} {}`",
                setting.arg.get_long().unwrap_or_default(),
                setting.value_name()
            ),
        };
        let key = match form {
            _ if !setting.in_file() => "–".to_owned(),
            Form::Tables => format!("`[[{name}]]`"),
            _ => format!("`{name}`"),
        };
        let (variable, (help, default)) = (TABLE.variable(setting), default(setting));
        text.push_str(&format!(
            "| {line} | `{variable}` | {key} | {default} | {help} |\n"
        ));
    }
    for setting in TABLE.settings() {
        let Some(tables) = setting.tables else {
            continue;
        };
        text.push_str(&format!(
            "\n| key of `[[{}]]` | default | what it is |\n|---|---|---|\n",
            setting.key()
        ));
        for key in tables.settings() {
            let (help, default) = default(&key);
            text.push_str(&format!("| `{}` | {default} | {help} |\n", key.name));
        }
    }
    text
}

/// With the variable BLESS, it is made to be so.
#[test]
fn the_documentation_has_every_setting() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/receiver.md");
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- settings -->\n", "<!-- /settings -->");
    let (before, rest) = text.split_once(begin).unwrap();
    let (tables, after) = rest.split_once(end).unwrap();
    if std::env::var_os("BLESS").is_some() {
        fs::write(
            &path,
            format!("{before}{begin}{}{end}{after}", documented()),
        )
        .unwrap();
        return;
    }
    assert_eq!(tables, documented(), "run this test once with BLESS=1");
}
