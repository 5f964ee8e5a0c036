//! The dashboard's own files, which the build put into the program.

use axum::extract::Request;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, ETAG, IF_NONE_MATCH, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};

use super::{answer, with_page_policy};

/// A file, perhaps also compressed.
#[derive(Debug)]
struct Asset {
    name: &'static str,
    tag: &'static str,
    plain: &'static [u8],
    br: Option<&'static [u8]>,
    gz: Option<&'static [u8]>,
}

/// All of them; none if the dashboard was not built.
static ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// Placeholder page.
const NOT_BUILT: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>flexfeed console</title>
<h1>The dashboard was not built into this program</h1>
<p>The API works all the same: <a href=\"/api/v1/openapi.json\">its description</a>.</p>
<p>To build the dashboard (Node.js 18 or later), and the program with it:</p>
<pre>cd web
npm ci
npm run build
cd ..
cargo build --release -p flexfeed-console</pre>
</html>
";

/// The file of that path, or the page that shows every other path.
pub(super) async fn page(request: Request) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let name = request.uri().path().trim_start_matches('/');
    find(ASSETS, name, request.headers())
}

fn find(assets: &[Asset], name: &str, headers: &HeaderMap) -> Response {
    let find = |name: &str| assets.iter().find(|asset| asset.name == name);
    if let Some(asset) = find(name) {
        return file(asset, headers);
    }
    // A page in place of a missing script helps no browser.
    if name.starts_with("assets/") {
        return StatusCode::NOT_FOUND.into_response();
    }
    match find("index.html") {
        Some(index) => file(index, headers),
        None => {
            let mut response = answer("text/html; charset=utf-8", NOT_BUILT);
            let age = HeaderValue::from_static("no-store");
            response.headers_mut().insert(CACHE_CONTROL, age);
            with_page_policy(response)
        }
    }
}

fn file(asset: &Asset, headers: &HeaderMap) -> Response {
    let known = headers.get(IF_NONE_MATCH);
    let known = known.and_then(|tags| tags.to_str().ok());
    let is_known = known.is_some_and(|tags| {
        tags.split(',')
            .any(|tag| tag.trim().trim_start_matches("W/") == asset.tag)
    });
    let (encoding, bytes) = match (accepted(headers), asset.br, asset.gz) {
        ((true, _), Some(br), _) => (Some("br"), br),
        ((_, true), _, Some(gz)) => (Some("gzip"), gz),
        _ => (None, asset.plain),
    };
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => answer(kind(asset.name), bytes),
    };
    let headers = response.headers_mut();
    // Names there have a hash in them.
    let age = match asset.name.starts_with("assets/") {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(age));
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(ETAG, HeaderValue::from_static(asset.tag));
    if let (false, Some(encoding)) = (is_known, encoding) {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    with_page_policy(response)
}

/// Whether the client takes Brotli, and gzip.
fn accepted(headers: &HeaderMap) -> (bool, bool) {
    let lines = headers.get_all(ACCEPT_ENCODING).iter();
    let all: Vec<&str> = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .collect();
    let takes = |name: &str| {
        all.iter().any(|one| {
            let (coding, weight) = one.split_once(';').unwrap_or((one, ""));
            let weight = weight.trim().trim_start_matches("q=");
            let is_none = !weight.is_empty() && weight.trim_matches(['0', '.']).is_empty();
            coding.trim().eq_ignore_ascii_case(name) && !is_none
        })
    };
    (takes("br"), takes("gzip"))
}

fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, end)| end) {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json" | "map") => "application/json",
        Some("webmanifest") => "application/manifest+json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    static TWO: &[Asset] = &[
        Asset {
            name: "index.html",
            tag: "\"1\"",
            plain: b"<html>",
            br: Some(b"br"),
            gz: Some(b"gz"),
        },
        Asset {
            name: "assets/a-123.js",
            tag: "\"2\"",
            plain: b"js",
            br: None,
            gz: None,
        },
    ];

    fn get(assets: &[Asset], name: &str, headers: &[(&'static str, &str)]) -> Response {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        find(assets, name, &map)
    }

    fn header<'a>(response: &'a Response, name: &str) -> &'a str {
        let value = response.headers().get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }

    #[test]
    fn every_path_has_the_page_and_files_are_themselves() {
        for path in [
            "",
            "receivers",
            "receivers/1",
            "index.html",
            "../etc/passwd",
        ] {
            let page = get(TWO, path, &[]);
            assert_eq!(page.status(), 200, "{path}");
            assert_eq!(header(&page, "cache-control"), "no-cache");
            assert_eq!(header(&page, "content-type"), "text/html; charset=utf-8");
            assert!(header(&page, "content-security-policy").contains("script-src 'self'"));
        }
        let script = get(TWO, "assets/a-123.js", &[]);
        assert!(header(&script, "cache-control").contains("immutable"));
        assert_eq!(get(TWO, "assets/b.js", &[]).status(), 404);
        let none = get(&[], "receivers", &[]);
        assert_eq!(none.status(), 200);
        assert_eq!(header(&none, "cache-control"), "no-store");
    }

    #[test]
    fn files_are_compressed_and_revalidated() {
        let encoding = |accept: &str| {
            let page = get(TWO, "", &[("accept-encoding", accept)]);
            header(&page, "content-encoding").to_owned()
        };
        assert_eq!(encoding("gzip, deflate, br"), "br");
        assert_eq!(encoding("gzip;q=1.0"), "gzip");
        assert_eq!(encoding("br;q=0, gzip"), "gzip");
        assert_eq!(encoding("identity"), "");
        let again = get(TWO, "", &[("if-none-match", "W/\"1\"")]);
        assert_eq!(again.status(), 304);
        assert_eq!(get(TWO, "", &[("if-none-match", "\"9\"")]).status(), 200);
    }
}
