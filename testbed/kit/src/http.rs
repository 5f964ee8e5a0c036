//! HTTP requests to a server under test, one connection each.

use std::io::{Read, Write};
use std::net::TcpStream;

/// Sends a GET request to `address` (`host:port`) and returns the status code and the body.
pub fn get(address: &str, path: &str) -> (u16, String) {
    let answer = exchange(
        address,
        &format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n"),
    );
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, body.to_owned())
}

/// Sends a request and returns everything until the server closes the connection.
pub fn exchange(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
