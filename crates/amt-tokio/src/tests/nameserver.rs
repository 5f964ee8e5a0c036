//! A scripted name server.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::net::UdpSocket;

pub const A: u16 = 1;
pub const AAAA: u16 = 28;
pub const AMTRELAY: u16 = 260;

/// Answer to one question.
#[derive(Clone, Debug)]
pub enum Answer {
    Silence,
    /// Data of records of the requested type; possibly none.
    Records(Vec<Vec<u8>>),
}

#[derive(Debug, Default)]
struct Book {
    /// Answers by name (with a final dot) and type; other questions get no answer.
    answers: BTreeMap<(String, u16), Answer>,
    asked: Vec<(String, u16)>,
}

/// A running server, which ends when dropped.
pub struct NameServer {
    pub addr: SocketAddr,
    book: Arc<Mutex<Book>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl NameServer {
    pub async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let addr = socket.local_addr().unwrap();
        let book = Arc::new(Mutex::new(Book::default()));
        let own = book.clone();
        let task = tokio::spawn(async move {
            let mut buffer = [0; 2048];
            while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
                let Some(answer) = answer(&buffer[..len], &own) else {
                    continue;
                };
                socket.send_to(&answer, from).await.unwrap();
            }
        });
        Self { addr, book, task }
    }

    pub fn says(&self, name: &str, kind: u16, answer: Answer) {
        let mut book = self.book.lock().unwrap();
        book.answers.insert((name.to_owned(), kind), answer);
    }

    /// Returns how many questions for records of this type arrived.
    pub fn asked(&self, kind: u16) -> usize {
        let book = self.book.lock().unwrap();
        book.asked
            .iter()
            .filter(|(_, asked)| *asked == kind)
            .count()
    }
}

fn answer(query: &[u8], book: &Mutex<Book>) -> Option<Vec<u8>> {
    let mut at = 12;
    let mut name = String::new();
    loop {
        let len = usize::from(*query.get(at)?);
        let label = query.get(at + 1..at + 1 + len)?;
        at += 1 + len;
        if len == 0 {
            break;
        }
        name.push_str(&String::from_utf8_lossy(label).to_lowercase());
        name.push('.');
    }
    let kind = u16::from_be_bytes(*query.get(at..)?.first_chunk()?);
    let mut book = book.lock().unwrap();
    book.asked.push((name.clone(), kind));
    let Answer::Records(records) = book.answers.get(&(name, kind))? else {
        return None;
    };
    let mut out = query.get(..2)?.to_vec();
    // An answer to a question that asked for recursion; it and so many records.
    out.extend_from_slice(&[0x81, 0x80, 0, 1, 0, u8::try_from(records.len()).unwrap()]);
    out.extend_from_slice(&[0, 0, 0, 0]);
    out.extend_from_slice(query.get(12..at + 4)?);
    for data in records {
        // The name of the question.
        out.extend_from_slice(&[0xc0, 12]);
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&[0, 1, 0, 0, 1, 0]);
        out.extend_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
        out.extend_from_slice(data);
    }
    Some(out)
}

/// An AMTRELAY record with an address, which may be asked without discovery.
pub fn relay_at(precedence: u8, ip: IpAddr) -> Vec<u8> {
    let (kind, bytes) = match ip {
        IpAddr::V4(ip) => (1, ip.octets().to_vec()),
        IpAddr::V6(ip) => (2, ip.octets().to_vec()),
    };
    [vec![precedence, 0x80 | kind], bytes].concat()
}

/// An AMTRELAY record with a name.
pub fn relay_named(precedence: u8, name: &str) -> Vec<u8> {
    let mut data = vec![precedence, 0x83];
    for label in name.trim_end_matches('.').split('.') {
        data.push(u8::try_from(label.len()).unwrap());
        data.extend_from_slice(label.as_bytes());
    }
    data.push(0);
    data
}
