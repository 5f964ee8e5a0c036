//! Ids of entries.

use crate::entry::{Entry, Fields, MAX_ID_BYTES};

/// Returns the entry's own id, or a stable one from its constant properties; `None` if the entry
/// has none of these.
pub(super) fn identify(own: Option<&str>, entry: &Entry) -> Option<String> {
    let own = own.map(str::trim).filter(|id| !id.is_empty());
    if let Some(id) = own
        && id.len() <= MAX_ID_BYTES
    {
        return Some(crate::xml::clean(id).into_owned()).filter(|id| !id.is_empty());
    }
    let mut fields = Fields::new(b"flexfeed entry id v1");
    if let Some(id) = own {
        fields.field(Some(id));
        return Some(fields.finish_urn());
    }
    let texts = [
        &entry.title,
        &entry.content_html,
        &entry.content_text,
        &entry.summary,
    ];
    if entry.url.is_none() && texts.iter().all(|t| t.is_none()) {
        // A podcast's episode may be nothing but its file.
        fields.field(Some(&entry.attachments.first()?.url));
        return Some(fields.finish_urn());
    }
    // Dates do not count: they change with every generation of some feeds. White space does not
    // either.
    let folded = |text: &Option<String>| {
        let text = text.as_deref()?;
        Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    // The title counts alongside the link, because feeds exist whose entries all link to one page:
    // an entry that appears twice is better than one that is lost.
    fields.field(entry.url.as_deref());
    fields.field(folded(&entry.title).as_deref());
    if entry.url.is_none() {
        for text in &texts[1..] {
            fields.field(folded(text).as_deref());
        }
    }
    Some(fields.finish_urn())
}
