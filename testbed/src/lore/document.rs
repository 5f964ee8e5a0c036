//! The Atom document (RFC 4287) in lore's shape.

use std::fmt::Write;

use super::mails::Mail;

/// Number of entries the document shows.
pub const WINDOW: usize = 25;

/// Returns the document up to the first entry of a generated feed.
pub fn head(updated: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"us-ascii\"?>\n\
         <feed\nxmlns=\"http://www.w3.org/2005/Atom\"\n\
         xmlns:thr=\"http://purl.org/syndication/thread/1.0\"><title>All of lore.example</title>\
         <link\nrel=\"alternate\"\ntype=\"text/html\"\n\
         href=\"https://lore.example/all/\"/>\
         <link\nrel=\"self\"\nhref=\"https://lore.example/all/new.atom\"/>\
         <id>mailto:all@lore.example</id><updated>{updated}</updated>"
    )
}

/// The document after the last entry.
pub const TAIL: &str = "</feed>\n";

/// Whether a mail's title is written as HTML, as lore does for titles that are not ASCII.
pub fn title_is_html(mail: &Mail) -> bool {
    !mail.title.is_ascii()
}

/// One `entry` element.
pub fn entry(mail: &Mail) -> String {
    let mut xml = String::new();
    let kind = if title_is_html(mail) {
        "\ntype=\"html\""
    } else {
        ""
    };
    let _ = write!(
        xml,
        "<entry><author><name>{}</name><email>{}</email></author><title{kind}>{}</title>\
         <updated>{}</updated><link\nhref=\"{}\"/><id>{}</id>",
        escaped(&mail.author),
        escaped(&mail.email),
        escaped(&mail.title),
        rfc3339(mail.updated),
        escaped(&mail.link),
        mail.id
    );
    if let Some((id, link)) = &mail.parent {
        let _ = write!(
            xml,
            "<thr:in-reply-to\nref=\"{id}\"\nhref=\"{}\"/>",
            escaped(link)
        );
    }
    xml.push_str(
        "<content\ntype=\"xhtml\"><div\nxmlns=\"http://www.w3.org/1999/xhtml\"><pre\n\
         style=\"white-space:pre-wrap\">",
    );
    for run in &mail.body {
        let text = escaped(&run.text);
        if run.quoted {
            let _ = write!(xml, "<span\nclass=\"q\">{text}</span>");
        } else {
            xml.push_str(&text);
        }
    }
    xml.push_str("</pre></div></content></entry>");
    xml
}

/// A time to the second, as the archive gives it.
pub fn rfc3339(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// ASCII text with references for markup and for everything that is not ASCII.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            ascii if ascii.is_ascii() => out.push(ascii),
            other => {
                let _ = write!(out, "&#{};", u32::from(other));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::mails::Writer;
    use super::*;

    #[test]
    fn entries_are_ascii_and_markup_is_balanced() {
        let mut writer = Writer::new(3);
        for _ in 0..100 {
            let xml = entry(&writer.write());
            assert!(xml.is_ascii());
            assert_eq!(xml.matches('<').count(), xml.matches('>').count());
            assert_eq!(xml.matches("<span").count(), xml.matches("</span>").count());
        }
    }
}
