//! The table in the documentation.

use super::*;

/// The tables of docs/receiver.md, which are made from those of the program.
fn documented() -> String {
    let mut text = String::from(
        "| flag | variable | key of the file | default | what it is |\n|---|---|---|---|---|\n",
    );
    for setting in TABLE.settings {
        let line = match (setting.on_line(), setting.place, setting.form) {
            (false, ..) => "–".to_owned(),
            (_, Place::Argument, _) => format!("`{}`", setting.value),
            (_, _, Form::Switch) => format!("`--{}`", setting.flag),
            _ => format!("`--{} {}`", setting.flag, setting.value),
        };
        let key = match (setting.in_file(), setting.form) {
            (false, _) => "–".to_owned(),
            (_, Form::Sections(_)) => format!("`[[{}]]`", setting.name),
            _ => format!("`{}`", setting.name),
        };
        let (variable, default, help) = (TABLE.variable(setting), setting.default, setting.help);
        text.push_str(&format!(
            "| {line} | `{variable}` | {key} | {default} | {help} |\n"
        ));
    }
    for setting in TABLE.settings {
        let Form::Sections(keys) = setting.form else {
            continue;
        };
        let name = setting.name;
        text.push_str(&format!(
            "\n| key of `[[{name}]]` | default | what it is |\n|---|---|---|\n"
        ));
        for key in keys {
            text.push_str(&format!(
                "| `{}` | {} | {} |\n",
                key.name, key.default, key.help
            ));
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
