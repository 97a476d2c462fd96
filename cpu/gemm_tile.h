// The register tile: ROWS × (VECS·LANES) elements of C, held in registers over one block of k.
// This file is a template: gemm_avx2.c, gemm_avx512.c include it with the macros below defined, and
// it undefines them.
//   TILE_TABLE      name of the table of functions to define
//   TILE_(x)        makes a name unique to this instance
//   TILE_TARGET     target attribute
//   ROWS, VECS      size of the tile
//   VEC, LANES      fp32 vector
//   FACTOR          vector of units: floats, or pairs of bf16
//   LOAD_UNITS, BROADCAST_UNIT, MULADD(c, a, b)
//   LOAD, STORE, LOAD_BF16, STORE_BF16
//
// A is read a unit at a time and broadcast, either where it lies (row stride a_row) or from packed
// panels [k][ROWS]; B comes from packed panels [k][VECS·LANES], which stream from the second-level
// cache while the tile's rows of A stay in the first.

GK_INLINE TILE_TARGET void TILE_(run)(const gk_tile *t, int rows, int packed) {
  const ptrdiff_t a_row = packed ? 4 : t->a_row, a_step = packed ? 4 * ROWS : 4;
  const char *a = t->a;
  const char *b = t->b;
  VEC c[ROWS][VECS];
  GK_UNROLL for (int i = 0; i < rows; i++) {
    const char *from = t->init + i * t->init_row;
    GK_UNROLL for (int j = 0; j < VECS; j++)
      c[i][j] = t->init_bf16 ? LOAD_BF16(from + j * LANES * 2) : LOAD(from + j * LANES * 4);
    // The tile that is computed after this one: its lines arrive meanwhile.
    GK_UNROLL for (int j = 0; j < VECS * LANES * 4; j += 64)
      __builtin_prefetch(t->next + i * t->next_row + j, 1);
  }
  for (int64_t k = t->units; k > 0; k--) {
    FACTOR bv[VECS];
    GK_UNROLL for (int j = 0; j < VECS; j++) bv[j] = LOAD_UNITS(b + j * LANES * 4);
    GK_UNROLL for (int i = 0; i < rows; i++) {
      FACTOR av = BROADCAST_UNIT(a + i * a_row);
      GK_UNROLL for (int j = 0; j < VECS; j++) c[i][j] = MULADD(c[i][j], av, bv[j]);
    }
    a += a_step;
    b += VECS * LANES * 4;
  }
  GK_UNROLL for (int i = 0; i < rows; i++) {
    char *to = t->out + i * t->out_row;
    GK_UNROLL for (int j = 0; j < VECS; j++) {
      if (t->out_bf16) STORE_BF16(to + j * LANES * 2, c[i][j]);
      else STORE(to + j * LANES * 4, c[i][j]);
    }
  }
}

#define TILE_ROWS(R)                                                                         \
  TILE_TARGET static void TILE_(strided_##R)(const gk_tile *t) { TILE_(run)(t, R, 0); } \
  TILE_TARGET static void TILE_(packed_##R)(const gk_tile *t) { TILE_(run)(t, R, 1); }
TILE_ROWS(1)
TILE_ROWS(2)
TILE_ROWS(3)
TILE_ROWS(4)
#if ROWS == 8
TILE_ROWS(5)
TILE_ROWS(6)
TILE_ROWS(7)
TILE_ROWS(8)
#endif
#undef TILE_ROWS

const gk_tile_table TILE_TABLE = {
    .rows = ROWS,
    .cols = VECS * LANES,
    .strided = {0, TILE_(strided_1), TILE_(strided_2), TILE_(strided_3), TILE_(strided_4),
#if ROWS == 8
                TILE_(strided_5), TILE_(strided_6), TILE_(strided_7), TILE_(strided_8)
#endif
    },
    .packed = {0, TILE_(packed_1), TILE_(packed_2), TILE_(packed_3), TILE_(packed_4),
#if ROWS == 8
               TILE_(packed_5), TILE_(packed_6), TILE_(packed_7), TILE_(packed_8)
#endif
    },
};

#undef TILE_TABLE
#undef TILE_
#undef TILE_TARGET
#undef ROWS
#undef VECS
#undef VEC
#undef LANES
#undef FACTOR
#undef LOAD_UNITS
#undef BROADCAST_UNIT
#undef MULADD
#undef LOAD
#undef STORE
#undef LOAD_BF16
#undef STORE_BF16
