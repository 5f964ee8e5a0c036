//! A server that webhooks post to.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Post {
    pub path: String,
    /// By names in small letters.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Post {
    pub fn seq(&self) -> u64 {
        self.headers["ce-sequence"].parse().unwrap()
    }
}

/// Records posts, and answers each path as configured.
#[derive(Clone)]
pub struct HookServer {
    pub address: SocketAddr,
    posts: Arc<Mutex<Vec<Post>>>,
    /// The status for a path; 0 for no answer ever. 200 where nothing is said.
    answers: Arc<Mutex<HashMap<String, u16>>>,
}

impl HookServer {
    pub fn start() -> HookServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = HookServer {
            address: listener.local_addr().unwrap(),
            posts: Arc::default(),
            answers: Arc::default(),
        };
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = serving.clone();
                std::thread::spawn(move || server.serve(stream));
            }
        });
        server
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn answer(&self, path: &str, status: u16) {
        self.answers.lock().unwrap().insert(path.into(), status);
    }

    pub fn posts(&self, path: &str) -> Vec<Post> {
        let posts = self.posts.lock().unwrap();
        posts.iter().filter(|p| p.path == path).cloned().collect()
    }

    pub fn seqs(&self, path: &str) -> Vec<u64> {
        self.posts(path).iter().map(Post::seq).collect()
    }

    /// One connection with any number of requests.
    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut stream = stream;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let path = line.split(' ').nth(1)?.to_owned();
            let mut headers = HashMap::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).ok()?;
                let Some((name, value)) = line.trim().split_once(':') else {
                    break;
                };
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
            let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
            reader.read_exact(&mut body).ok()?;
            let status = self.answers.lock().unwrap().get(&path).copied();
            self.posts.lock().unwrap().push(Post {
                path,
                headers,
                body,
            });
            match status.unwrap_or(200) {
                0 => loop {
                    std::thread::park();
                },
                status => {
                    let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
                    stream.write_all(answer.as_bytes()).ok()?;
                }
            }
        }
    }
}
