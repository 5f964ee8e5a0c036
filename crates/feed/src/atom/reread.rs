//! Reading of a file that an earlier run wrote.

use jiff::Timestamp;
use quick_xml::Reader;
use quick_xml::events::Event;
use uuid::Uuid;

use crate::feed_file::Content;
use crate::window::Slot;
use crate::xml::ATOM_NS;
use crate::xml::check::{Form, check};
use crate::xml::element::{attributes, find, outline};

/// Cuts the entries out of a document that is known to be well-formed, and finds the feed's own
/// link.
pub(super) fn content(text: &str) -> Result<Content, String> {
    let mut reader = Reader::from_str(text);
    let mut slots = Vec::new();
    let (mut link, mut origin) = (None, None);
    let mut inside = false;
    loop {
        let start = position(&reader);
        match reader.read_event().map_err(|e| e.to_string())? {
            Event::Start(tag) if !inside => {
                let atom = tag
                    .try_get_attribute("xmlns")
                    .ok()
                    .flatten()
                    .is_some_and(|a| a.value.as_ref() == ATOM_NS);
                if !atom || tag.name().as_ref() != "feed" {
                    return Err("the root element is not an Atom <feed>".into());
                }
                inside = true;
            }
            Event::Empty(_) if !inside => {
                return Err("the root element is empty".into());
            }
            Event::Start(tag) => {
                let entry = tag.local_name().as_ref() == "entry";
                let name = tag.to_end().into_owned();
                reader.read_to_end(name.name()).map_err(|e| e.to_string())?;
                if entry {
                    let xml = text.get(start..position(&reader)).unwrap_or_default();
                    slots.push(slot(xml, origin.take())?);
                }
            }
            Event::Empty(tag) if link.is_none() && tag.name().as_ref() == "link" => {
                let attributes = attributes(tag.attributes_raw());
                let named = find(&attributes, "rel") == Some("alternate");
                link = find(&attributes, "href")
                    .filter(|_| named)
                    .map(str::to_owned);
            }
            Event::PI(pi) if pi.target() == "flexfeed" => {
                origin = Some(parse_origin(pi.content()).ok_or("an unknown <?flexfeed …?>")?);
            }
            Event::Eof => return Ok(Content { link, slots }),
            _ => {}
        }
    }
}

fn slot(xml: &str, origin: Option<(Uuid, u64, Timestamp)>) -> Result<Slot, String> {
    // This check is what proves that an entry which is alone in the file is namespace-complete.
    check(xml, Form::Element)?;
    let element = outline(xml)?;
    let text = |local| element.child(ATOM_NS, local).map(|c| c.text.trim());
    let id = text("id")
        .filter(|id| !id.is_empty() && element.namespace == ATOM_NS)
        .ok_or("an entry without an id")?
        .to_owned();
    let time = match origin {
        Some((_, _, time)) => time,
        None => text("updated")
            .and_then(|t| t.parse().ok())
            .unwrap_or(Timestamp::UNIX_EPOCH),
    };
    Ok(Slot {
        id,
        origin: origin.map(|(incarnation, seq, _)| (incarnation, seq)),
        time,
        text: xml.into(),
    })
}

fn parse_origin(content: &str) -> Option<(Uuid, u64, Timestamp)> {
    let (update, time) = content.trim().split_once(' ')?;
    let (incarnation, seq) = update.split_once('/')?;
    Some((
        incarnation.parse().ok()?,
        seq.parse().ok()?,
        time.parse().ok()?,
    ))
}

fn position(reader: &Reader<&[u8]>) -> usize {
    usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX)
}
