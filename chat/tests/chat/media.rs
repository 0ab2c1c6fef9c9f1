//! Pictures and sounds in messages: their places in prompts, and the form in which they are saved.

use autoplace_chat::{ChatTemplate, Conversation, Error, FAMILIES, Media, Message, Part, PromptPart};
use autoplace_media::{Image, Sound};

fn image(red: u8) -> Image {
    Image::from_rgb(2, 1, vec![red; 6]).unwrap()
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, <_>::default()).unwrap()
}

fn seen(red: u8) -> Vec<Message> {
    vec![Message::user([Part::text("Look:"), Part::image(image(red)), Part::text("what is it?")])]
}

#[test]
fn every_family_puts_a_picture_where_the_text_around_it_is() {
    for family in FAMILIES {
        let template = ChatTemplate::family(family).unwrap();
        let rendered = template.render(&Conversation::new(&seen(1))).unwrap();
        let parts: Vec<_> = rendered.parts().collect();
        let at = parts.iter().position(|part| matches!(part, PromptPart::Media(0, _))).expect(family);
        assert!(parts[at - 1].as_str().ends_with("Look:"), "{family}: {parts:?}");
        assert!(parts[at + 1].as_str().starts_with("what is it?"), "{family}: {parts:?}");
        assert_eq!(parts.iter().map(PromptPart::as_str).collect::<String>(), rendered.as_str());
        assert!(!rendered.as_str().chars().any(|c| u32::from(c) >= 0xf_0000), "{family}");
    }
}

#[test]
fn different_pictures_are_different_prompts_and_a_template_of_parts_shows_them_too() {
    let chatml = ChatTemplate::family("chatml").unwrap();
    let text = |red| chatml.render(&Conversation::new(&seen(red))).unwrap().into_string();
    assert_eq!(text(1), text(1));
    assert_ne!(text(1), text(2));
    let of_parts = template("{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}");
    let rendered = of_parts.render(&Conversation::new(&seen(1))).unwrap();
    assert!(matches!(
        rendered.parts().collect::<Vec<_>>()[..],
        [PromptPart::Markup("[Look:"), PromptPart::Media(0, _), PromptPart::Markup("what is it?]"),]
    ));
}

#[test]
fn a_template_without_a_place_for_a_picture_is_an_error_that_says_so() {
    for source in ["{{ messages[0].role }}", "{{ messages[0].content }}{{ messages[0].content }}"] {
        let refused = template(source).render(&Conversation::new(&seen(1)));
        assert!(matches!(refused, Err(Error::MediaNotShown { media: 1, shown: 0 })), "{source}: {refused:?}");
    }
}

#[test]
fn no_text_of_a_user_becomes_a_picture() {
    let shown = |c: char| {
        let mut messages = seen(1);
        messages.push(Message::user(format!("this {c} is text")));
        let rendered = ChatTemplate::family("chatml").unwrap().render(&Conversation::new(&messages)).unwrap();
        let media = rendered.parts().filter(|part| matches!(part, PromptPart::Media(..))).count();
        (media, rendered.as_str().contains(&format!("this {c} is text")))
    };
    for c in ['\u{f0000}', '\u{f0001}', '\u{fffd}', '\u{100000}'] {
        assert_eq!(shown(c), (1, true), "{c:?}");
    }
    // Marks are characters that no message contains. Other variables are not searched, so this one contains the
    // picture's mark, and the picture would be shown twice: an error.
    let template = template("{{ messages[0].content }}{{ note }}");
    let conversation = Conversation::new(&seen(1)).variable("note", "\u{f0000}");
    assert!(matches!(template.render(&conversation), Err(Error::MediaNotShown { .. })));
}

#[test]
fn a_message_is_saved_with_its_pixels_and_samples() {
    let sound = Sound::from_samples(16_000, vec![0.25, -0.5, 1.0]).unwrap();
    let message = Message::user([Part::image(image(7)), Part::audio(sound.clone())]);
    let text = serde_json::to_string(&message).unwrap();
    let read: Message = serde_json::from_str(&text).unwrap();
    assert_eq!(read, message);
    assert_eq!(read.media[1].media, Media::from(sound));
    assert_eq!(read.media[0].media.rgb(), Some((2, 1, &[7; 6][..])));
    let damaged = text.replace("\"width\":2", "\"width\":3");
    assert!(serde_json::from_str::<Message>(&damaged).unwrap_err().to_string().contains("3 x 1 pixels are 9 bytes"));
    // A message without pictures and sounds is written as it was before messages could have them.
    assert_eq!(serde_json::to_string(&Message::user("a")).unwrap(), r#"{"role":"user","content":"a"}"#);
}

#[test]
fn a_text_that_was_edited_keeps_its_picture_within_it() {
    let mut message = seen(1).remove(0);
    message.content = "é".to_owned();
    let rendered = ChatTemplate::family("chatml").unwrap().render(&Conversation::new(&[message])).unwrap();
    assert!(rendered.parts().any(|part| matches!(part, PromptPart::Media(0, _))));
}
