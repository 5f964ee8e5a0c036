//! Known differences between this crate and feed-rs.

/// Reasons to keep our result where the two differ, with the documents and the differing fields.
pub const KNOWN: &[(&str, &[(&str, &str)])] = &[
    (
        "feed-rs panics: on a duration that is too long, on UTF-16 with the mark of big endian",
        &[
            ("rss/podcast-itunes.xml", "panic"),
            ("encodings/utf-16be-bom.xml", "panic"),
        ],
    ),
    (
        "feed-rs refuses the whole document for one member, attribute or byte that is wrong",
        &[
            ("atom/content-types.atom", "refused"),
            ("atom/xml-base-nested.atom", "refused"),
            ("broken/less-than-signs.xml", "refused"),
            ("broken/nul-and-utf16-halves.xml", "refused"),
            ("broken/unclosed-tags.xml", "refused"),
            ("broken/unescaped-ampersands.xml", "refused"),
            ("encodings/utf-8-one-bad-byte.xml", "refused"),
            ("encodings/windows-1252-says-utf-8.xml", "refused"),
            ("encodings/windows-1252-undeclared.xml", "refused"),
            ("json/1.1-podcast.json", "refused"),
            ("json/control-characters.json", "refused"),
            ("json/huge-numbers.json", "refused"),
            ("json/lone-surrogates.json", "refused"),
            ("json/wrong-types.json", "refused"),
        ],
    ),
    (
        "the whole entries of a document that is cut off, damaged or has something before it",
        &[
            ("broken/bad-entry-in-the-middle.atom", "refused"),
            ("broken/php-warning-before.xml", "refused"),
            ("broken/truncated-in-tag.xml", "refused"),
            ("broken/truncated-in-text.xml", "refused"),
            ("json/truncated.json", "refused"),
        ],
    ),
    (
        "encodings that feed-rs does not know, or takes at their word",
        &[
            ("encodings/json-utf-16.json", "refused"),
            ("encodings/utf-16-declared-but-utf-8.xml", "refused"),
            ("encodings/utf-32be-no-bom.xml", "refused"),
            ("encodings/utf-32le-bom.xml", "refused"),
            ("encodings/utf-8-says-latin-1.xml", "content"),
            ("encodings/utf-8-says-latin-1.xml", "title"),
            ("encodings/utf-8-says-us-ascii.xml", "content"),
            ("encodings/utf-8-says-us-ascii.xml", "title"),
            ("json/bom-and-space.json", "refused"),
        ],
    ),
    (
        "versions of RSS and of Atom that feed-rs does not read: it finds no entries, or refuses",
        &[
            ("atom/0.3-blogger.xml", "number of entries"),
            ("atom/0.3-modes.xml", "number of entries"),
            ("rss/0.90-netscape.rdf", "number of entries"),
            ("rss/0.93-expires.xml", "refused"),
            ("rss/0.94-type.xml", "refused"),
            ("rss/2.0-default-namespace.xml", "number of entries"),
            ("rss/3.0-unknown-version.xml", "refused"),
            ("broken/items-outside-channel.xml", "number of entries"),
            ("broken/two-channels.xml", "number of entries"),
            ("broken/uppercase.xml", "refused"),
            ("broken/wrong-namespaces.xml", "number of entries"),
        ],
    ),
    (
        "what we pass over: entries without anything, too deep nesting, other namespaces' feeds, \
         an entry that is no feed",
        &[
            ("broken/atom-other-namespace.xml", "taken for a feed"),
            ("broken/deep-nesting.xml", "number of entries"),
            ("broken/empty-entries.atom", "number of entries"),
            ("not-feeds/atom-entry.xml", "taken for a feed"),
        ],
    ),
    (
        "dates: dialects that feed-rs does not know or takes for another time, and zeros",
        &[
            ("broken/mixed-case-elements.xml", "published"),
            ("broken/undeclared-prefixes.xml", "published"),
            ("dates/atom-odd.atom", "updated"),
            ("dates/iso8601.xml", "published"),
            ("dates/rfc822.xml", "published"),
            ("dates/unclear.xml", "published"),
            ("dates/words.xml", "published"),
            ("rss/hugo.xml", "published"),
            ("rss/hugo.xml", "updated"),
            ("rss/phpbb.xml", "published"),
            ("rss/squarespace-nested-author.xml", "published"),
        ],
    ),
    (
        "ids: of several the first one counts; one that is no id, because others have it too or it \
         is too long, is replaced; an unprefixed id in a prefixed feed is not Atom's",
        &[
            ("atom/prefixed.atom", "id"),
            ("broken/duplicate-elements.xml", "id"),
            ("ids/all-the-same.xml", "id"),
            ("ids/same-without-links.xml", "id"),
            ("ids/very-long.xml", "id"),
        ],
    ),
    (
        "links: wrapped over lines, relative, before the counting of clicks, in the guid, as \
         Atom's",
        &[
            ("broken/mixed-case-elements.xml", "link"),
            ("broken/relative-links.xml", "link"),
            ("broken/wrapped-link.xml", "link"),
            ("ids/white-space.xml", "link"),
            ("rss/feedburner.xml", "link"),
            ("rss/squarespace-nested-author.xml", "link"),
        ],
    ),
    (
        "texts: entities of HTML, markup that is not escaped, Media RSS, undeclared prefixes, the \
         first of several",
        &[
            ("atom/github-releases.atom", "title"),
            ("atom/youtube.xml", "content"),
            ("broken/duplicate-elements.xml", "title"),
            ("broken/html-entities.xml", "content"),
            ("broken/html-entities.xml", "title"),
            ("broken/mixed-case-elements.xml", "title"),
            ("broken/undeclared-prefixes.xml", "content"),
            ("rss/phpbb.xml", "content"),
            ("rss/phpbb.xml", "title"),
            ("rss/youtube-like-mrss.xml", "content"),
            ("rss/youtube-like-mrss.xml", "title"),
        ],
    ),
    (
        "an author's name in parentheses after the address",
        &[("rss/gitea.xml", "authors")],
    ),
];
