//! Outgoing HTTP for addresses that users and models name: what is reached, what is not, in every spelling.

mod exchange;
mod fields;
mod redirects;
mod spellings;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use reveille::ports::egress::{Egress, EgressError, Resolver, Settings};

/// A resolver that knows what it is told, answers each question from the next of its answers (the last one stays), and
/// keeps the questions.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    answers: HashMap<String, Vec<Vec<IpAddr>>>,
    asked: Vec<String>,
}

impl Names {
    fn with(self, name: &str, answers: &[&[&str]]) -> Names {
        let answers = answers.iter().map(|ips| ips.iter().map(|ip| ip.parse().unwrap()).collect()).collect();
        self.0.lock().unwrap().answers.insert(name.to_owned(), answers);
        self
    }

    fn asked(&self) -> Vec<String> {
        self.0.lock().unwrap().asked.clone()
    }
}

impl Resolver for Names {
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let mut state = self.0.lock().unwrap();
        state.asked.push(host.to_owned());
        let answer = match state.answers.get_mut(host) {
            Some(answers) if answers.len() > 1 => Ok(answers.remove(0)),
            Some(answers) => Ok(answers[0].clone()),
            None => Err(io::Error::other("no such name")),
        };
        Box::pin(async { answer })
    }
}

fn settings(allow: &[&str]) -> Settings {
    Settings { allow: allow.iter().map(|entry| (*entry).to_owned()).collect(), ..Settings::default() }
}

fn egress(allow: &[&str]) -> Egress {
    Egress::with_resolver(&settings(allow), Names::default()).unwrap()
}

/// The reason of a denial.
fn denied<T: std::fmt::Debug>(answer: Result<T, EgressError>) -> String {
    match answer {
        Err(EgressError::Denied { why }) => why,
        other => panic!("expected a denial, got {other:?}"),
    }
}
