//! The state of a sequence, divided by tokens. Rows that were read in pieces can restore the state of all tokens, or of
//! the first ones.

use crate::support::{batch_of, cpu_context, tokens};
use llama_sys::{Batch, Context, ContextParams, Error, FlashAttention, KvType, Position, RowPiece, RowShape, Token};

/// Parameters with which rows have different layouts: values in rows, transposed values, and quantised values.
fn layouts() -> [ContextParams; 3] {
    let params = |flash_attention, kv| ContextParams {
        n_ctx: 512,
        n_seq_max: 2,
        flash_attention,
        type_k: kv,
        type_v: kv,
        ..ContextParams::default()
    };
    [
        params(FlashAttention::Enabled, KvType::F16),
        params(FlashAttention::Disabled, KvType::F32),
        params(FlashAttention::Enabled, KvType::Q8_0),
    ]
}

fn text() -> Vec<Token> {
    tokens("In the beginning God created the heaven and the earth. And the earth was without form,")
}

/// The logits after one more token of a sequence.
fn logits_after(context: &mut Context, seq: i32, position: usize) -> Vec<f32> {
    let mut batch = Batch::default();
    batch.add(300, position as Position, seq, true);
    context.decode(&batch).unwrap();
    context.logits(-1).unwrap().to_vec()
}

/// The rows of a text, in pieces of these numbers of tokens.
fn pieces(context: &mut Context, sizes: &[usize]) -> (RowShape, Vec<(Vec<u8>, usize)>) {
    let rows = context.rows(0).unwrap().expect("attention alone");
    assert_eq!((rows.tokens(), rows.shape().has_rest()), (text().len(), false));
    assert!(context.read_rest(0, &rows).unwrap().is_empty());
    let mut at = 0;
    let piece = |&size: &usize| {
        let tokens = at..at + size;
        at += size;
        (context.read_rows(0, &rows, tokens).unwrap(), size)
    };
    let pieces = sizes.iter().map(piece).collect();
    (rows.shape().clone(), pieces)
}

#[test]
fn rows_in_pieces_are_the_state_in_any_context_and_any_sequence() {
    for params in layouts() {
        let mut context = cpu_context(params.clone());
        let text = text();
        context.decode(&batch_of(&text, 0)).unwrap();
        let (shape, pieces) = pieces(&mut context, &[1, 7, text.len() - 8]);
        assert!(pieces.iter().all(|(data, tokens)| data.len() == shape.row_bytes() * tokens));
        assert_eq!(RowShape::from_bytes(&shape.to_bytes()), Some(shape.clone()));
        // Several pieces of the same size are read at once.
        let rows = context.rows(0).unwrap().unwrap();
        let at_once = context.read_pieces(0, &rows, 3..text.len(), 4, b"front").unwrap();
        for (index, piece) in at_once.iter().enumerate() {
            let from = 3 + 4 * index;
            let alone = context.read_rows(0, &rows, from..text.len().min(from + 4)).unwrap();
            assert!(piece == &[b"front", &alone[..]].concat(), "{index}");
        }
        assert_eq!(at_once.len(), (text.len() - 3).div_ceil(4));
        let given: Vec<_> = pieces.iter().map(|(data, n)| RowPiece { data, tokens: *n, wanted: *n }).collect();
        let mut other = cpu_context(ContextParams { n_ctx: 768, n_seq_max: 3, ..params });
        other.write_rows(2, &shape, &given, &[]).unwrap();
        assert_eq!(other.kv_seq_end(2).unwrap(), Some(text.len() as Position));
        assert!(logits_after(&mut context, 0, text.len()) == logits_after(&mut other, 2, text.len()));
    }
}

#[test]
fn the_first_rows_are_the_state_of_the_first_tokens() {
    for params in layouts() {
        let mut context = cpu_context(params.clone());
        let text = text();
        context.decode(&batch_of(&text, 0)).unwrap();
        let (shape, pieces) = pieces(&mut context, &[8, text.len() - 8]);
        let wanted = |data, tokens, wanted| RowPiece { data, tokens, wanted };
        let given = [wanted(&*pieces[0].0, 8, 8), wanted(&*pieces[1].0, text.len() - 8, 3)];
        let mut other = cpu_context(params);
        other.write_rows(1, &shape, &given, &[]).unwrap();
        context.kv_seq_remove(0, 11..Position::MAX).unwrap();
        assert!(logits_after(&mut context, 0, 11) == logits_after(&mut other, 1, 11));
    }
}

#[test]
fn a_sequence_may_begin_at_another_position_than_0() {
    for params in layouts() {
        let mut context = cpu_context(params.clone());
        let text = text();
        context.decode(&batch_of(&text, 0)).unwrap();
        context.kv_seq_remove(0, 0..3).unwrap();
        let rows = context.rows(0).unwrap().unwrap();
        assert_eq!((rows.first(), rows.tokens()), (3, text.len() - 3));
        let data = context.read_rows(0, &rows, 0..rows.tokens()).unwrap();
        let given = [RowPiece { data: &data, tokens: rows.tokens(), wanted: rows.tokens() }];
        let mut other = cpu_context(params);
        other.begin_rows(1, 3, rows.shape(), &given, &[]).unwrap();
        assert!(!other.write_more_rows(1, &given, usize::MAX).unwrap());
        // The rows are in other cells now. So the last bits of the logits may be different.
        let written = other.rows(1).unwrap().unwrap();
        assert_eq!((written.first(), written.tokens()), (3, rows.tokens()));
        assert!(other.read_rows(1, &written, 0..written.tokens()).unwrap() == data);
        // If there is a gap in a sequence, it cannot be divided.
        context.kv_seq_remove(0, 5..6).unwrap();
        assert!(context.rows(0).unwrap().is_none());
    }
}

#[test]
fn cells_in_another_order_than_their_tokens_are_read_in_the_order_of_the_tokens() {
    let params = ContextParams { kv_unified: true, ..layouts()[0].clone() };
    let mut context = cpu_context(params.clone());
    let text = text();
    // The cells of another text are in the middle. The first tokens of this text get the cells after them, and the
    // other tokens get the cells before them.
    let compute = |context: &mut Context, seq, from: usize, tokens: &[Token]| {
        let mut batch = Batch::default();
        for (at, token) in tokens.iter().enumerate() {
            batch.add(*token, (from + at) as Position, seq, at + 1 == tokens.len());
        }
        context.decode(&batch).unwrap();
    };
    compute(&mut context, 1, 0, &tokens("And he said"));
    compute(&mut context, 0, 0, &text[..5]);
    context.kv_seq_remove(1, 0..Position::MAX).unwrap();
    compute(&mut context, 0, 5, &text[5..]);
    let (shape, pieces) = pieces(&mut context, &[text.len()]);
    let rows = context.rows(0).unwrap().unwrap();
    for (index, piece) in context.read_pieces(0, &rows, 0..text.len(), 3, &[]).unwrap().iter().enumerate() {
        let from = 3 * index;
        assert!(piece == &context.read_rows(0, &rows, from..text.len().min(from + 3)).unwrap(), "{index}");
    }
    let given = [RowPiece { data: &pieces[0].0, tokens: text.len(), wanted: text.len() }];
    let mut other = cpu_context(params);
    other.write_rows(0, &shape, &given, &[]).unwrap();
    let (_, again) = self::pieces(&mut other, &[text.len()]);
    assert!(pieces[0].0 == again[0].0);
}

#[test]
fn pieces_that_do_not_fit_are_refused_and_leave_an_empty_sequence() {
    let [rows, transposed, quantised] = layouts();
    let mut context = cpu_context(rows.clone());
    let text = text();
    context.decode(&batch_of(&text, 0)).unwrap();
    let (shape, pieces) = pieces(&mut context, &[text.len()]);
    let piece = RowPiece { data: &pieces[0].0, tokens: text.len(), wanted: text.len() };
    let short = RowPiece { data: &piece.data[1..], ..piece };
    let many = RowPiece { wanted: text.len() + 1, ..piece };
    for (params, given, rest) in [
        (rows.clone(), &[short][..], &[][..]),
        (rows.clone(), &[many], &[]),
        (rows.clone(), &[piece], &[0; 4]),
        (transposed, &[piece], &[]),
        (quantised, &[piece], &[]),
        (rows, &[piece; 40], &[]),
    ] {
        let mut other = cpu_context(params);
        let refused = other.write_rows(1, &shape, given, rest).unwrap_err();
        assert!(matches!(refused, Error::State { .. }), "{refused}");
        assert_eq!(other.kv_seq_end(1).unwrap(), None);
    }
    for bytes in [&[][..], &[2], &[0, 0], &shape.to_bytes()[..20]] {
        assert_eq!(RowShape::from_bytes(bytes), None);
    }
}

#[test]
fn rows_are_written_in_parts_between_computations_of_another_sequence() {
    for (params, kv_unified) in layouts().into_iter().flat_map(|params| [(params.clone(), false), (params, true)]) {
        let params = ContextParams { n_seq_max: 3, kv_unified, ..params };
        let mut context = cpu_context(params.clone());
        let text = text();
        context.decode(&batch_of(&text, 0)).unwrap();
        let (shape, pieces) = pieces(&mut context, &[8, text.len() - 8]);
        let given: Vec<_> = pieces.iter().map(|(data, n)| RowPiece { data, tokens: *n, wanted: *n }).collect();
        let running = tokens("And he said");
        let mut alone = cpu_context(params.clone());
        alone.decode(&batch_of(&running, 0)).unwrap();
        let mut other = cpu_context(params);
        // With a unified cache, free cells between those of other sequences divide the rows of the restored sequence.
        let mut batch = Batch::default();
        text[..5].iter().zip(0..).for_each(|(token, position)| batch.add(*token, position, 2, true));
        other.decode(&batch).unwrap();
        other.decode(&batch_of(&running, 0)).unwrap();
        other.kv_seq_remove(2, 0..Position::MAX).unwrap();
        other.begin_rows(1, 0, &shape, &given, &[]).unwrap();
        let bytes = (shape.row_bytes() * text.len()).div_ceil(7);
        let (mut position, mut parts) = (running.len(), 0);
        loop {
            let (expected, logits) = (logits_after(&mut alone, 0, position), logits_after(&mut other, 0, position));
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3 * a.abs().max(1.0);
            assert!(expected.iter().zip(&logits).all(close), "{kv_unified}: {position}");
            position += 1;
            parts += 1;
            if !other.write_more_rows(1, &given, bytes).unwrap() {
                break;
            }
            // Until the last part is written, the sequence can only be removed.
            let mut batch = Batch::default();
            batch.add(300, text.len() as Position, 1, true);
            assert!(matches!(other.decode(&batch), Err(Error::State { .. })));
            assert!(matches!(other.rows(1), Err(Error::State { .. })));
            assert!(matches!(other.save_state(1), Err(Error::State { .. })));
            assert!(matches!(other.kv_seq_copy(1, 2, 0..Position::MAX), Err(Error::State { .. })));
            assert!(matches!(other.kv_seq_remove(1, 3..Position::MAX), Err(Error::State { .. })));
        }
        assert!(parts >= 7, "{parts}");
        let rows = other.rows(1).unwrap().unwrap();
        let all = context.rows(0).unwrap().unwrap();
        assert!(
            other.read_rows(1, &rows, 0..text.len()).unwrap() == context.read_rows(0, &all, 0..text.len()).unwrap()
        );
        assert!(matches!(other.write_more_rows(1, &given, 1), Err(Error::State { .. })));
    }
}

#[test]
fn a_sequence_that_is_removed_before_its_last_rows_gets_no_more_of_them() {
    for params in layouts() {
        let mut context = cpu_context(params.clone());
        let text = text();
        context.decode(&batch_of(&text, 0)).unwrap();
        let (shape, pieces) = pieces(&mut context, &[text.len()]);
        let given = [RowPiece { data: &pieces[0].0, tokens: text.len(), wanted: text.len() }];
        let mut other = cpu_context(params);
        for clears in [false, true] {
            other.begin_rows(1, 0, &shape, &given, &[]).unwrap();
            assert!(other.write_more_rows(1, &given, 1).unwrap());
            match clears {
                true => other.kv_clear().unwrap(),
                false => drop(other.kv_seq_remove(1, 0..Position::MAX).unwrap()),
            }
            assert!(matches!(other.write_more_rows(1, &given, 1), Err(Error::State { .. })));
            assert_eq!(other.kv_seq_end(1).unwrap(), None);
        }
        // Other pieces than those of the beginning are refused, and the sequence is then empty.
        other.begin_rows(1, 0, &shape, &given, &[]).unwrap();
        assert!(matches!(other.write_more_rows(1, &[], 1), Err(Error::State { .. })));
        assert_eq!(other.kv_seq_end(1).unwrap(), None);
        // So is another division of the same tokens.
        let (_, divided) = self::pieces(&mut context, &[text.len() - 5, 5]);
        let divided = [&divided[0], &divided[1]].map(|(data, n)| RowPiece { data, tokens: *n, wanted: *n });
        let swapped = [divided[1], divided[0]];
        other.begin_rows(1, 0, &shape, &divided, &[]).unwrap();
        let most = divided[0].data.len() / text.len();
        assert!(other.write_more_rows(1, &divided, most).unwrap());
        assert!(matches!(other.write_more_rows(1, &swapped, most), Err(Error::State { .. })));
        assert_eq!(other.kv_seq_end(1).unwrap(), None);
        other.decode(&batch_of(&text, 0)).unwrap();
    }
}

#[test]
fn rows_that_belong_to_too_many_places_are_written_at_once() {
    // Transposed values have one place for each dimension and each run of cells: 6 * 128 * 100 here.
    let params = ContextParams { n_seq_max: 3, kv_unified: true, ..layouts()[1].clone() };
    let text: Vec<Token> = text().into_iter().cycle().take(100).collect();
    let mut context = cpu_context(params.clone());
    context.decode(&batch_of(&text, 0)).unwrap();
    let rows = context.rows(0).unwrap().unwrap();
    let data = context.read_rows(0, &rows, 0..100).unwrap();
    let given = [RowPiece { data: &data, tokens: 100, wanted: 100 }];
    let mut other = cpu_context(params);
    let mut alternating = Batch::default();
    for (position, token) in text.iter().enumerate() {
        [0, 2].into_iter().for_each(|seq| alternating.add(*token, position as Position, seq, true));
    }
    other.decode(&alternating).unwrap();
    other.kv_seq_remove(2, 0..Position::MAX).unwrap();
    other.begin_rows(1, 0, rows.shape(), &given, &[]).unwrap();
    assert!(!other.write_more_rows(1, &given, 1).unwrap());
    let written = other.rows(1).unwrap().unwrap();
    assert!(other.read_rows(1, &written, 0..100).unwrap() == data);
    assert!(other.read_pieces(1, &written, 0..100, 100, &[]).unwrap() == [data.clone()]);
    // Other pieces would be refused, as for rows that are written in parts.
    other.begin_rows(1, 0, rows.shape(), &given, &[]).unwrap();
    assert!(matches!(other.write_more_rows(1, &[], 1), Err(Error::State { .. })));
    assert_eq!((other.kv_seq_end(0).unwrap(), other.kv_seq_end(1).unwrap()), (Some(100), None));
}
