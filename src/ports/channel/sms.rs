//! Text messages over Twilio, or over SignalWire, which speaks the same language.
//!
//! `sent` means that the provider took the message; whether it arrived it reports later, to an address that is good for
//! this one delivery. Neither drops repeats, so an attempt that was not answered is `unknown` until such a report
//! comes, and is never made again by itself. A text is made to fit into `max_segments`, and says so where it was cut.

mod callback;
mod judgement;
pub mod segments;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::domain::notification::DeliveryReport;
use crate::ports::channel::provider::{ProviderApi, has_public_name};
use crate::ports::channel::sms::callback::Signer;
use crate::ports::channel::{
    Callback, CallbackError, Capabilities, Channel, ChannelError, Login, OutgoingMessage, Receipt, ReceiptLevel,
    report_url,
};
use crate::ports::vault::Vault;

/// The version of the interface that both providers speak.
const VERSION: &str = "2010-04-01";
/// Most parts of a message that both providers take.
const SEGMENT_RANGE: std::ops::RangeInclusive<usize> = 1..=10;

/// `[channels.sms]`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Provider of text messages.
    pub provider: SmsProvider,
    /// Twilio's account SID, SignalWire's project id; absent: no text messages.
    pub account: Option<String>,
    /// Twilio's auth token, SignalWire's API token; with `api_key` its secret.
    pub token: Option<Secret>,
    /// Twilio's API key (`SK…`), to log in with instead of the account itself.
    pub api_key: Option<String>,
    /// A number in E.164, a short code, or a name of up to 11 letters and digits.
    pub from: Option<String>,
    /// A messaging service's SID, instead of `from` or beside it.
    pub messaging_service: Option<String>,
    /// SignalWire's: `example` for example.signalwire.com.
    pub space: Option<String>,
    /// The address before `/2010-04-01`; absent: the provider's own.
    pub base_url: Option<String>,
    /// The key that signs reports; absent: Twilio's auth token. SignalWire's signing key, of its dashboard.
    pub signing_key: Option<Secret>,
    /// Parts that a message may have, 1 to 10. Each is paid for.
    pub max_segments: usize,
    /// For one attempt, 1 to 50.
    pub timeout_seconds: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            provider: SmsProvider::Twilio,
            account: None,
            token: None,
            api_key: None,
            from: None,
            messaging_service: None,
            space: None,
            base_url: None,
            signing_key: None,
            max_segments: 3,
            timeout_seconds: 20,
        }
    }
}

/// Providers of SMS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SmsProvider {
    /// <https://www.twilio.com/docs/messaging/api/message-resource>
    Twilio,
    /// <https://developer.signalwire.com/compatibility-api/rest/messages>
    Signalwire,
}

impl SmsProvider {
    fn shown(self) -> &'static str {
        match self {
            SmsProvider::Twilio => "Twilio",
            SmsProvider::Signalwire => "SignalWire",
        }
    }
}

/// The channel.
pub struct SmsChannel {
    provider: ProviderApi,
    account: String,
    /// User name of the login: the account itself, or a key of it.
    user: String,
    from: Option<String>,
    messaging_service: Option<String>,
    max_segments: usize,
    signer: Option<Signer>,
    vault: Vault,
    /// Where reports are to go; `None` where the provider could not reach us.
    public_url: Option<String>,
}

impl SmsChannel {
    /// `None` where no account is configured. Reports are asked for where `public_url` is an address that the provider
    /// can reach.
    pub fn new(
        settings: &Settings,
        vault: Vault,
        public_url: Option<&str>,
    ) -> Result<Option<SmsChannel>, ValidationErrors> {
        let Some(account) = settings.account()? else { return Ok(None) };
        let provider = settings.provider(account)?;
        Ok(Some(SmsChannel {
            provider,
            account: account.clone(),
            user: settings.user(account).to_owned(),
            from: settings.from.clone(),
            messaging_service: settings.messaging_service.clone(),
            max_segments: settings.max_segments,
            signer: settings.signer(),
            vault,
            public_url: public_url.filter(|url| has_public_name(url)).map(str::to_owned),
        }))
    }

    async fn send(&self, message: &OutgoingMessage<'_>) -> Result<Receipt, ChannelError> {
        let Some(to) = &message.recipient.addresses.sms else {
            return Err(ChannelError::Unsendable { why: "the recipient has no number for text messages".into() });
        };
        let text = self.fit_to_segments(message)?;
        let form = self.form(message.id, to, &text);
        let path = format!("/{VERSION}/Accounts/{}/Messages.json", self.account);
        let request = self.provider.post(&path).basic_auth(&self.user, Some(self.provider.secret.expose())).form(&form);
        self.ask(request, message.now).await
    }

    async fn ask(&self, request: reqwest::RequestBuilder, now: DateTime<Utc>) -> Result<Receipt, ChannelError> {
        let answer = self.provider.ask(request, now).await?;
        judgement::judge(&self.provider, &answer)?;
        let provider_id = answer.body["sid"].as_str().map(|sid| self.provider.public_text(sid));
        Ok(Receipt { provider_id, confirmed: ReceiptLevel::Sent })
    }

    /// The text within the parts that it may have. A link stays, because without it there is nothing to decide with.
    fn fit_to_segments(&self, message: &OutgoingMessage) -> Result<String, ChannelError> {
        let words = message.words;
        let link = words.link.as_ref().map(|link| link.url.as_str());
        segments::fit(&words.text, link, self.max_segments).ok_or_else(|| ChannelError::Unsendable {
            why: format!("the link alone is longer than channels.sms.max_segments = {} allows", self.max_segments),
        })
    }

    fn form(&self, delivery: Uuid, to: &str, text: &str) -> Vec<(&'static str, String)> {
        let mut form = vec![("To", to.to_owned()), ("Body", text.to_owned())];
        form.extend(self.from.clone().map(|from| ("From", from)));
        form.extend(self.messaging_service.clone().map(|service| ("MessagingServiceSid", service)));
        form.extend(self.public_url.as_deref().map(|url| {
            ("StatusCallback", report_url::address(url, "sms", &report_url::issue(&self.vault, "sms", delivery)))
        }));
        form
    }
}

impl Settings {
    /// Whether the provider takes the login, by asking for the account; `None`: none is configured. A key may not look
    /// at accounts, so with one the newest message is asked for.
    ///
    /// # Errors
    /// What is wrong with the settings.
    pub async fn login(&self) -> Result<Option<Login>, ValidationErrors> {
        let Some(account) = self.account()? else { return Ok(None) };
        let (provider, user) = (self.provider(account)?, self.user(account));
        let path = match &self.api_key {
            None => format!("/{VERSION}/Accounts/{account}.json"),
            Some(_) => format!("/{VERSION}/Accounts/{account}/Messages.json?PageSize=1"),
        };
        let request = provider.get(&path).basic_auth(user, Some(provider.secret.expose()));
        let answer = match provider.probe(request).await {
            Ok(answer) => answer,
            Err(login) => return Ok(Some(login)),
        };
        let (name, body) = (self.provider.shown(), &answer.body);
        let state = body["status"].as_str().map(|state| provider.public_text(state));
        Ok(Some(match (answer.status.as_u16(), state.as_deref()) {
            (200..=299, None | Some("active")) if body.is_object() => {
                Login::Fine(format!("{name} takes the login of {user}"))
            }
            (200..=299, Some(state)) => Login::Wrong(format!("the account {account} at {name} is {state}")),
            (200..=299, None) => Login::Wrong(format!("{name}'s answer can't be read")),
            (403, _) if self.api_key.is_some() => Login::Odd(format!(
                "{name} does not let the key {user} look at messages; it may send some all the same"
            )),
            _ => provider.refused(&answer, body["message"].as_str().unwrap_or_default()),
        }))
    }

    /// The account that messages are sent by; `None`: none is configured.
    fn account(&self) -> Result<Option<&String>, ValidationErrors> {
        // half of what it needs is no wish to do without
        let is_half = self.token.is_some() || self.from.is_some() || self.messaging_service.is_some();
        match &self.account {
            None if is_half => Err(ValidationErrors::one(
                "/channels/sms/account",
                "is needed: Twilio's account SID, SignalWire's project id",
            )),
            account => Ok(account.as_ref()),
        }
    }

    /// User name of the login.
    fn user<'a>(&'a self, account: &'a str) -> &'a str {
        self.api_key.as_deref().unwrap_or(account)
    }

    /// Where it is asked; adds up all that is wrong.
    fn provider(&self, account: &str) -> Result<ProviderApi, ValidationErrors> {
        let mut faults = ValidationErrors::new();
        self.check(account, &mut faults);
        let base = self.base().unwrap_or_else(|why| {
            faults.add("/channels/sms/space", why);
            "https://api.twilio.com".into()
        });
        let token = self.token.clone().unwrap_or_else(|| Secret::new(""));
        match ProviderApi::new(self.provider.shown(), "/channels/sms", &base, token, self.timeout_seconds) {
            Ok(provider) if faults.is_empty() => Ok(provider),
            Ok(_) => Err(faults),
            Err(more) => {
                faults.0.extend(more.0);
                Err(faults)
            }
        }
    }

    fn check(&self, account: &str, faults: &mut ValidationErrors) {
        let plain = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        if !plain(account) {
            faults.add("/channels/sms/account", "is an account SID (`AC…`), or SignalWire's project id");
        }
        if self.token.as_ref().is_none_or(|token| token.expose().trim().is_empty()) {
            faults.add("/channels/sms/token", "is needed: Twilio's auth token, SignalWire's API token");
        }
        if self.from.is_none() && self.messaging_service.is_none() {
            faults.add("/channels/sms/from", "is needed, or `messaging_service`: who the messages are from");
        }
        if self.from.as_deref().is_some_and(|from| !is_sender(from)) {
            let forms = "a number such as `+14155550100`, a short code, or a name of up to 11 letters and digits";
            faults.add("/channels/sms/from", format!("must be {forms}"));
        }
        if self.messaging_service.as_deref().is_some_and(|service| !plain(service)) {
            faults.add("/channels/sms/messaging_service", "is a messaging service's SID (`MG…`)");
        }
        if self.api_key.as_deref().is_some_and(|key| !plain(key)) {
            faults.add("/channels/sms/api_key", "is an API key's SID (`SK…`)");
        }
        if !SEGMENT_RANGE.contains(&self.max_segments) {
            faults.add("/channels/sms/max_segments", "must be 1 to 10");
        }
    }

    /// The address before the version.
    fn base(&self) -> Result<String, &'static str> {
        let missing = "is needed: `example` where the space is example.signalwire.com";
        match (&self.base_url, self.provider, &self.space) {
            (Some(base), ..) => Ok(base.clone()),
            (None, SmsProvider::Twilio, _) => Ok("https://api.twilio.com".into()),
            (None, SmsProvider::Signalwire, None) => Err(missing),
            (None, SmsProvider::Signalwire, Some(space)) => {
                let name = space.strip_suffix(".signalwire.com").unwrap_or(space);
                let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
                plain.then(|| format!("https://{name}.signalwire.com/api/laml")).ok_or(missing)
            }
        }
    }

    /// Twilio signs with the auth token, which is not known where an API key logs in.
    fn signer(&self) -> Option<Signer> {
        let auth_token =
            || self.token.clone().filter(|_| self.provider == SmsProvider::Twilio && self.api_key.is_none());
        let key = self.signing_key.clone().or_else(auth_token)?;
        Some(Signer::new(self.provider, &key))
    }
}

impl Channel for SmsChannel {
    fn name(&self) -> &'static str {
        "sms"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            supported_formats: &["plain"],
            max_response_length: segments::most_characters(self.max_segments),
            deduplicates: false,
        }
    }

    fn fits(&self, text: &str) -> bool {
        segments::fits(text, self.max_segments)
    }

    fn deliver<'a>(&'a self, message: &'a OutgoingMessage<'a>) -> BoxFuture<'a, Result<Receipt, ChannelError>> {
        Box::pin(self.send(message))
    }

    fn read_callback(&self, callback: &Callback) -> Result<DeliveryReport, CallbackError> {
        if let Some(signer) = &self.signer {
            signer.verify(callback)?;
        }
        callback::read(callback.body, &self.provider)
    }
}

/// A number in E.164, a short code, or a name with at least one letter.
fn is_sender(from: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let name = |c: char| c.is_ascii_alphanumeric() || " +-_&".contains(c);
    match from.strip_prefix('+') {
        Some(number) => digits(number) && (8..=15).contains(&number.len()),
        None if digits(from) => (3..=8).contains(&from.len()),
        None => from.len() <= 11 && from.chars().all(name) && from.chars().any(|c| c.is_ascii_alphabetic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::notification::recipient::Reader;
    use crate::domain::notification::{Delivery, MessageKind, Recipient, References};
    use crate::domain::task::Urgency;
    use crate::ports::channel::templates::MessageTemplates;
    use crate::ports::vault::fixture::{OLD, vault};

    fn made(settings: &Settings) -> Result<Option<SmsChannel>, ValidationErrors> {
        SmsChannel::new(settings, vault(&[OLD]), None)
    }

    fn settings() -> Settings {
        Settings {
            account: Some("AC1".into()),
            token: Some(Secret::new("canary")),
            from: Some("+14155550100".into()),
            ..Settings::default()
        }
    }

    #[test]
    fn long_answer_keeps_the_link_to_the_whole_in_every_alphabet() {
        let link = "https://wake.example.org/messages/0123456789abcdef0123456789abcdef0123456789abcdef";
        let sms = made(&settings()).unwrap().unwrap();
        let page = Secret::new(link);
        let about = References { whole: Some(&page), task_name: Some("Mail"), ..References::default() };
        for (said, least) in [("two mails, ", 400), ("两封邮件，", 180), ("Grüße 😀, ", 180), ("€[]", 280)] {
            let delivery = Delivery { text: Some(said.repeat(400)), ..Delivery::sample(MessageKind::Message) };
            let words = MessageTemplates::embedded().words(&delivery, about, Reader::NOBODY, &sms).unwrap();
            let recipient = Recipient::default();
            let message = OutgoingMessage {
                id: Uuid::nil(),
                recipient_id: "ann",
                created_at: DateTime::UNIX_EPOCH,
                now: DateTime::UNIX_EPOCH,
                recipient: &recipient,
                words: &words,
                urgency: Urgency::Normal,
            };
            let sent = sms.fit_to_segments(&message).unwrap();
            assert!(sent.ends_with(&format!(":\n{link}")) && sent.contains(&said.repeat(3)), "{sent}");
            assert_eq!(segments::segments(&sent), 3, "{sent}");
            assert!(sent.chars().count() > least, "{}: {sent}", sent.chars().count());
        }
    }

    #[test]
    fn faults_in_the_settings_are_named_together_and_hold_no_token() {
        assert!(made(&Settings::default()).unwrap().is_none(), "no account, no text messages");
        assert!(made(&settings()).unwrap().is_some());
        let wrong = Settings {
            provider: SmsProvider::Signalwire,
            account: Some("AC1/../x".into()),
            from: Some("a name that is long".into()),
            messaging_service: Some("MG 1".into()),
            api_key: Some("".into()),
            max_segments: 11,
            timeout_seconds: 0,
            ..settings()
        };
        assert_eq!(
            made(&wrong).err().unwrap().to_string(),
            "/channels/sms/account: is an account SID (`AC…`), or SignalWire's project id; \
             /channels/sms/from: must be a number such as `+14155550100`, a short code, or a name of up to 11 letters and \
             digits; /channels/sms/messaging_service: is a messaging service's SID (`MG…`); \
             /channels/sms/api_key: is an API key's SID (`SK…`); /channels/sms/max_segments: must be 1 to 10; \
             /channels/sms/space: is needed: `example` where the space is example.signalwire.com; \
             /channels/sms/timeout_seconds: must be 1 to 50"
        );
        let half = Settings { account: None, ..settings() };
        assert_eq!(
            made(&half).err().unwrap().to_string(),
            "/channels/sms/account: is needed: Twilio's account SID, SignalWire's project id"
        );
        let nothing = Settings { token: None, from: None, ..settings() };
        assert_eq!(
            made(&nothing).err().unwrap().to_string(),
            "/channels/sms/token: is needed: Twilio's auth token, SignalWire's API token; \
             /channels/sms/from: is needed, or `messaging_service`: who the messages are from"
        );
        assert!(!format!("{:?}", settings()).contains("canary"));
    }

    #[test]
    fn each_provider_has_its_place() {
        let base = |provider, space: Option<&str>, base_url: Option<&str>| {
            let (space, base_url) = (space.map(str::to_owned), base_url.map(str::to_owned));
            Settings { provider, space, base_url, ..settings() }.base()
        };
        assert_eq!(base(SmsProvider::Twilio, None, None).as_deref(), Ok("https://api.twilio.com"));
        let there = Ok("https://example.signalwire.com/api/laml");
        assert_eq!(base(SmsProvider::Signalwire, Some("example"), None).as_deref(), there);
        assert_eq!(base(SmsProvider::Signalwire, Some("example.signalwire.com"), None).as_deref(), there);
        assert!(base(SmsProvider::Signalwire, Some("evil.org/"), None).is_err());
        assert_eq!(
            base(SmsProvider::Signalwire, None, Some("http://127.0.0.1:1")).as_deref(),
            Ok("http://127.0.0.1:1")
        );
    }

    #[test]
    fn sender_is_a_number_a_short_code_or_a_name() {
        for good in ["+14155550100", "12345", "Reveille", "Wake up 7"] {
            assert!(is_sender(good), "{good}");
        }
        for bad in
            ["", "+", "+1415", "12", "4155550100", "+1415555010012345", "Reveille wakes", "Grüße", "+a1415555010"]
        {
            assert!(!is_sender(bad), "{bad}");
        }
    }
}
