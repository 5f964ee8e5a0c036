//! Acceptable values.

/// Acceptable values of every setting but the one that names the file: for its flag, its variable
/// and its key. Behind an @ is what stands in a file that the value names.
pub(super) const EXAMPLES: &[(&str, [&str; 3])] = &[
    (
        "link",
        [
            "flexfeed://a@h?ch=a",
            "flexfeed://b@h?ch=b",
            "flexfeed://c@h?ch=c",
        ],
    ),
    (
        "link_file",
        [
            "@flexfeed://a@h?ch=a",
            "@flexfeed://b@h?ch=b",
            "@flexfeed://c@h?ch=c",
        ],
    ),
    ("data", ["/a", "/b", "/c"]),
    ("name", ["a", "b", "c"]),
    ("http", ["127.0.0.1:1", "[::1]:2", "off"]),
    ("no_json", ["true", "false", "true"]),
    (
        "webhook",
        [
            "https://a.example/",
            "https://b.example/",
            "https://c.example/",
        ],
    ),
    (
        "webhook_secret",
        [
            "0123456789abcdef-a",
            "0123456789abcdef-b",
            "0123456789abcdef-c",
        ],
    ),
    (
        "webhook_secret_file",
        [
            "@0123456789abcdef-a",
            "@0123456789abcdef-b",
            "@0123456789abcdef-c",
        ],
    ),
    ("exec", ["a", "b", "c"]),
    ("delivery_log", ["/a", "/b", "/c"]),
    ("keep_entries", ["1", "20", "10000"]),
    ("file_interval", ["0", "500ms", "1m"]),
    ("history", ["250", "all", "0"]),
    ("journal_updates", ["16", "17", "18"]),
    ("journal_bytes", ["1M", "2M", "3M"]),
    ("interface", ["192.0.2.1", "192.0.2.2", "2001:db8::3"]),
    ("no_multicast", ["true", "false", "true"]),
    ("no_replicate", ["true", "false", "true"]),
    (
        "amt_relay",
        ["a.example", "b.example:7,192.0.2.1", "anycast"],
    ),
    ("amt_local_port", ["40001", "40002", "65535"]),
    ("no_amt", ["true", "false", "true"]),
    ("no_amt_dns", ["true", "false", "true"]),
    ("redundancy", ["two", "one", "two"]),
    (
        "ca_file",
        [
            "@-----BEGIN CERTIFICATE----- a",
            "@-----BEGIN CERTIFICATE----- b",
            "@-----BEGIN CERTIFICATE----- c",
        ],
    ),
    ("insecure", ["true", "false", "true"]),
    ("qlog", ["/a", "/b", "/c"]),
    ("log_format", ["text", "json", "text"]),
    ("log_level", ["a", "b", "c"]),
];
