//! A scripted name server.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// Type of records with an IPv4 address.
pub const A: u16 = 1;
/// Type of records with an IPv6 address.
pub const AAAA: u16 = 28;
/// Type of records with an AMT relay (RFC 8777).
pub const AMTRELAY: u16 = 260;

/// Shell lines for `in_namespace!`: the only name server is the one at 127.0.0.1:53, and a resolver
/// waits for it for minutes.
pub const LOCAL_RESOLVER: &str = r#"
resolv=$(mktemp)
echo "nameserver 127.0.0.1" > "$resolv"
echo "options timeout:30 attempts:5" >> "$resolv"
mount --bind "$resolv" /etc/resolv.conf
rm "$resolv"
"#;

/// One question of a resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// In small letters, with a final dot.
    pub name: String,
    /// Type of the records.
    pub kind: u16,
}

/// Answer to one question.
#[derive(Clone, Debug)]
pub enum Answer {
    /// None at all.
    Silence,
    /// Records of the requested type; possibly none.
    Records {
        /// Seconds for which they may be remembered.
        ttl: u32,
        /// Data of each.
        data: Vec<Vec<u8>>,
    },
}

impl Answer {
    /// Returns an answer with records that may be remembered for some minutes.
    pub fn records(data: Vec<Vec<u8>>) -> Self {
        Answer::Records { ttl: 256, data }
    }
}

/// Answers by name (with a final dot) and type.
type Book = Arc<Mutex<BTreeMap<(String, u16), Answer>>>;

/// A running server, which ends when dropped.
#[derive(Debug)]
pub struct NameServer {
    /// Where it listens.
    pub addr: SocketAddr,
    book: Book,
    asked: Arc<Mutex<Vec<Question>>>,
    is_over: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
}

impl NameServer {
    /// Starts one on a port of the loopback interface. It is silent until [`NameServer::says`]
    /// gives it answers.
    pub fn start() -> Self {
        let book = Book::default();
        let own = Arc::clone(&book);
        let mut server = Self::answering("127.0.0.1:0", move |question| {
            let key = (question.name.clone(), question.kind);
            let answer = own.lock().unwrap().get(&key).cloned();
            answer.unwrap_or(Answer::Silence)
        });
        server.book = book;
        server
    }

    /// Starts one at an address with the port, which answers by the function.
    pub fn answering(
        address: &str,
        mut answer: impl FnMut(&Question) -> Answer + Send + 'static,
    ) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        let addr = socket.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let is_over = Arc::new(AtomicBool::new(false));
        let (log, end) = (Arc::clone(&asked), Arc::clone(&is_over));
        let serving = thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let query = &buffer[..len];
                let Some((question, end)) = parse(query) else {
                    continue;
                };
                log.lock().unwrap().push(question.clone());
                if let Answer::Records { ttl, data } = answer(&question) {
                    let reply = reply(query, end, question.kind, ttl, &data);
                    socket.send_to(&reply, from).unwrap();
                }
            }
        });
        Self {
            addr,
            book: Book::default(),
            asked,
            is_over,
            serving: Some(serving),
        }
    }

    /// Sets the answer to questions for a name (with a final dot) and type.
    pub fn says(&self, name: &str, kind: u16, answer: Answer) {
        let mut book = self.book.lock().unwrap();
        book.insert((name.to_owned(), kind), answer);
    }

    /// Returns the number of questions for records of this type that arrived.
    pub fn asked(&self, kind: u16) -> usize {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .filter(|question| question.kind == kind)
            .count()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Any datagram wakes its thread.
        let any = if self.addr.is_ipv4() {
            "0.0.0.0:0"
        } else {
            "[::]:0"
        };
        let _ = UdpSocket::bind(any).and_then(|socket| socket.send_to(&[], self.addr));
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
    }
}

/// Returns the question of a query and where it ends.
fn parse(query: &[u8]) -> Option<(Question, usize)> {
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
    query.get(at + 3)?;
    Some((Question { name, kind }, at + 4))
}

/// Returns the reply to a query whose question ends at `end`.
fn reply(query: &[u8], end: usize, kind: u16, ttl: u32, data: &[Vec<u8>]) -> Vec<u8> {
    let mut out = query[..2].to_vec();
    // A reply to a query that asked for recursion; one question and so many records.
    let count = u8::try_from(data.len()).unwrap();
    out.extend_from_slice(&[0x81, 0x80, 0, 1, 0, count, 0, 0, 0, 0]);
    out.extend_from_slice(&query[12..end]);
    for data in data {
        // The name of the question.
        out.extend_from_slice(&[0xc0, 12]);
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&[0, 1]);
        out.extend_from_slice(&ttl.to_be_bytes());
        out.extend_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
        out.extend_from_slice(data);
    }
    out
}

/// Returns the data of an AMTRELAY record with an address, which may be asked without discovery.
pub fn relay_at(precedence: u8, ip: IpAddr) -> Vec<u8> {
    let (kind, bytes) = match ip {
        IpAddr::V4(ip) => (1, ip.octets().to_vec()),
        IpAddr::V6(ip) => (2, ip.octets().to_vec()),
    };
    [vec![precedence, 0x80 | kind], bytes].concat()
}

/// Returns the data of an AMTRELAY record with a name.
pub fn relay_named(precedence: u8, name: &str) -> Vec<u8> {
    let mut data = vec![precedence, 0x83];
    for label in name.trim_end_matches('.').split('.') {
        data.push(u8::try_from(label.len()).unwrap());
        data.extend_from_slice(label.as_bytes());
    }
    data.push(0);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A question for the address of `a.test`.
    const QUERY: &[u8] = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\x01a\x04Test\0\0\x01\0\x01";

    #[test]
    fn answers_follow_the_script() {
        let server = NameServer::start();
        server.says("a.test.", A, Answer::records(vec![vec![9, 9, 9, 9]]));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(QUERY, server.addr).unwrap();
        let mut reply = [0; 100];
        let len = socket.recv(&mut reply).unwrap();
        assert_eq!(&reply[..8], b"\x12\x34\x81\x80\0\x01\0\x01");
        assert!(reply[..len].ends_with(b"\xc0\x0c\0\x01\0\x01\0\0\x01\0\0\x04\x09\x09\x09\x09"));
        assert_eq!((server.asked(A), server.asked(AAAA)), (1, 0));
    }
}
