//! Authentication of the receiver and of the source.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::program::{self, Running, ends, receiver, text};
use crate::site::{Site, entries};

fn run(data: &Path, link: &str, more: &[&str]) -> Running {
    let mut command = receiver(&["--data", text(data), "--http", "off"]);
    Running::start(command.args(more).env("FLEXFEED_LINK", link))
}

fn stop(mut running: Running) {
    running.signal(program::Signal::TERM);
    running.wait_for("stopped; the next start");
    assert_eq!(running.exit_code(), Some(0));
}

async fn refused(data: &Path, link: String) -> String {
    let mut command = receiver(&["--data", text(data), "--http", "off"]);
    command.env("FLEXFEED_LINK", link);
    let (code, said) = tokio::task::spawn_blocking(move || ends(&mut command))
        .await
        .unwrap();
    assert_eq!(code, Some(1), "{said}");
    said
}

fn credential(data: &Path) -> PathBuf {
    data.join("state/credential")
}

fn id(data: &Path) -> Uuid {
    let text = std::fs::read_to_string(data.join("state/receiver-id")).unwrap();
    text.trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_counts_once_and_then_the_credential_does() {
    let site = Site::start().await;
    site.publish(1).await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let running = run(&data, &site.link(), &[]);
    running.wait_for("channel=\"lore\" head=1");
    stop(running);
    assert_eq!(site.enrolled(), 1);
    let mode = std::fs::metadata(credential(&data))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let kept = std::fs::read(credential(&data)).unwrap();

    // From now on the token is not needed, and a wrong one does no harm.
    for link in [
        site.link_without_token(),
        site.link_with_wrong_token(),
        site.link(),
    ] {
        let running = run(&data, &link, &[]);
        running.wait_for("channel=\"lore\" head=1");
        stop(running);
    }
    assert_eq!(site.enrolled(), 1);
    assert_eq!(std::fs::read(credential(&data)).unwrap(), kept);

    // A stranger without a token gets the remedy.
    let said = refused(&folder.path().join("other"), site.link_without_token()).await;
    assert!(
        said.contains("no such token") && said.contains("new link"),
        "{said}"
    );
    assert_eq!(site.enrolled(), 1);
}

/// Killed right after its first HELLO, perhaps before the answer: the source may have stored its
/// credential. The next start uses the same one.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_during_enrolment_does_not_lock_the_receiver_out() {
    let site = Site::start().await;
    site.publish(1).await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut running = run(&data, &site.link(), &[]);
    while site.enrolled() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    running.signal(program::Signal::KILL);
    running.exit_code();
    let running = run(&data, &site.link_without_token(), &[]);
    running.wait_for("channel=\"lore\" head=1");
    stop(running);
    assert_eq!(site.enrolled(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_the_remedy() {
    let site = Site::start().await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let running = run(&data, &site.link(), &[]);
    running.wait_for("channel=\"lore\" head=0");
    stop(running);

    // The id of another one, without its credential. That is no reason to end: the other may go.
    let copy = folder.path().join("copy");
    std::fs::create_dir_all(copy.join("state")).unwrap();
    std::fs::copy(
        data.join("state/receiver-id"),
        copy.join("state/receiver-id"),
    )
    .unwrap();
    let running = run(&copy, &site.link(), &[]);
    let line = running.wait_for("another receiver has this id");
    assert!(
        line.contains("data folder of its own") && line.contains("state/credential"),
        "{line}"
    );
    stop(running);

    // Another's credential: it is not even sent.
    std::fs::remove_file(copy.join("state/receiver-id")).unwrap();
    let said = refused(&copy, site.link()).await;
    assert!(
        said.contains("belongs to receiver") && said.contains("receiver-id"),
        "{said}"
    );

    site.revoke(id(&data));
    let said = refused(&data, site.link()).await;
    assert!(
        said.contains("revoked") && said.contains("receiver forget ID"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_counts_where_the_link_has_no_pin() {
    let site = Site::start().await;
    site.publish(1).await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let link = site.link_without_pin();
    // Of no authority that this system knows: nothing is said to it.
    let running = run(&data, &link, &[]);
    running.wait_for("not connected");
    stop(running);
    assert_eq!(site.enrolled(), 0);

    let file = site.certificate();
    let running = run(&data, &link, &["--ca-file", text(&file)]);
    running.wait_for("channel=\"lore\" head=1");
    while entries(&data) != [1] {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    stop(running);
    assert_eq!(site.enrolled(), 1);

    let running = run(&data, &link, &["--insecure"]);
    running.wait_for("NOT VERIFIED");
    running.wait_for("channel=\"lore\" head=1");
    stop(running);
}
